"""A file of `torch.save`, of any layout: as a checkpoint, and as its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from sdc_guard.archive.inert_pickle import StoredTensor as Described
from sdc_guard.archive.inventory import Inventory, inventory
from sdc_guard.archive.torch_records import NEXT_STEP
from sdc_guard.errors import CheckpointUnreadable, SdcGuardError

from ..checkpoint import Checkpoint
from ..content import Content, StoredTensor
from ..unforeseen import unforeseen
from .step_of import settle, step_in_name, step_inside


def described(file: Path, format: str, opener: Callable[[Path], Content]) -> Checkpoint:
    """A file as a checkpoint; its tensors are not read.

    Args:
        opener: gives its content, or raises CheckpointUnreadable.
    """
    try:
        content = opener(file)
    except CheckpointUnreadable as error:
        why = error.what
    except (SdcGuardError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - because one file nobody foresaw must not hide the others
        why = unforeseen(error, "reading")
    else:
        return _readable(file, format, content)
    unknown = settle(None, step_in_name(file.stem))
    return Checkpoint(unknown.step, file, format, "untested", (why,), readable=False)


def _readable(file: Path, format: str, content: Content) -> Checkpoint:
    step = settle(content.step, step_in_name(file.stem))
    notes = step.notes if content.tensors else (*step.notes, "it holds no tensors")
    return Checkpoint(step.step, file, format, "untested", named_step=step.named_step, notes=notes)


def take_stock(file: Path, root: object, size: int) -> Inventory:
    """The leaves of a file's structure.

    Args:
        size: bytes of its pickle.

    Raises:
        CheckpointUnreadable: it has no end.
    """
    try:
        return inventory(root, size)
    except RecursionError as error:
        raise CheckpointUnreadable(
            f"unreadable: the structure of the file is damaged ({error})",
            where=str(file),
            next_step=NEXT_STEP,
        ) from None


def content_of(
    file: Path,
    found: Inventory,
    read: Callable[[Described], torch.Tensor],
    head: Callable[[Described], bytes] | None = None,
) -> Content:
    """The content of a file, with its step.

    Args:
        read: reads a tensor, or raises CheckpointUnreadable.
        head: reads the first bytes of one that lies row by row, or raises likewise.
    """
    tensors = {
        name: StoredTensor(
            stored.dtype, stored.shape, (file,), partial(read, stored),
            partial(head, stored) if head and _by_rows(stored) else None,
            partial(read, _once(stored)) if _repeats(stored) else None,
        )
        for name, stored in found.tensors.items()
    }  # fmt: skip
    step = step_inside(found.numbers, tensors)
    return Content(tensors, found.aliases, found.numbers, found.foreign, step)


def _repeats(stored: Described) -> bool:
    """Whether it repeats what is stored along a dimension."""
    alike = len(stored.shape) == len(stored.stride)
    return alike and any(
        size > 1 and stride == 0 for size, stride in zip(stored.shape, stored.stride, strict=True)
    )


def _once(stored: Described) -> Described:
    """Without what repeats along a dimension."""
    sides = [
        (min(size, 1), 1) if stride == 0 else (size, stride)
        for size, stride in zip(stored.shape, stored.stride, strict=True)
    ]
    shape, strides = tuple(side[0] for side in sides), tuple(side[1] for side in sides)
    return replace(stored, shape=shape, stride=strides)


def _by_rows(stored: Described) -> bool:
    """Whether elements lie one after the other, the last dimension's first, as they are."""
    expected = 1
    for size, stride in zip(reversed(stored.shape), reversed(stored.stride), strict=False):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return not (stored.conjugated or stored.negated)
