"""Damaging a checkpoint's file, and what reading it says then."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from ..archive.compare import check_bytes
from ..archive.manifest import Manifest
from ..digest.reference import words
from ..errors import CheckpointUnreadable, InjectionError
from ..inject.fault import Draw, Fault, Touched


def damage_file(path: Path, fault: Fault, draws: int) -> tuple[Touched, ...]:
    """Apply a fault of site "file" to a file, in place.

    Args:
        path: the file.
        fault: its `bits` flip in one byte, or with the change "zero" `width` bytes read as zeros;
            its first byte is drawn from `draws` where it is open.

    Returns:
        the bytes that were written to; those that did not change, too.

    Raises:
        InjectionError: another change or pattern than these, or no such byte.
    """
    content = bytearray(path.read_bytes())
    size = len(content)
    start = Draw(draws, "file", fault.step, 0).below(size, "index")
    if fault.index is not None:
        start = fault.index if isinstance(fault.index, int) else fault.index[0]
    if not 0 <= start < size:
        raise InjectionError(f"no byte {start}", where=f"{path} of {size:,} bytes")
    if fault.pattern == "tile":
        start -= start % fault.width  # as blocks of a disk lie
    mask = sum(1 << bit for bit in fault.bits or ())
    touched = []
    for index in range(start, min(start + fault.width, size)):
        before = content[index]
        content[index] = _changed(before, fault, mask)
        touched.append(Touched(index, before, content[index]))
    path.write_bytes(content)
    return tuple(touched)


def _changed(byte: int, fault: Fault, mask: int) -> int:
    if fault.change == "zero" and fault.pattern in ("element", "tile"):
        return 0
    if fault.change == "flip" and fault.pattern == "element" and 0 < mask < 256:
        return byte ^ mask
    raise InjectionError(
        f"a file has no {fault.change} of {fault.pattern} with the bits {fault.bits}",
        next_step="flip bits of a byte, or zero a tile of bytes",
    )


def proof(folder: Path) -> tuple[bool, str]:
    """Whether a sealed checkpoint's bytes are others than its manifest says, and why."""
    try:
        found = check_bytes(folder, Manifest.read(folder))
    except CheckpointUnreadable as error:
        return True, error.what
    return not found.sound, "; ".join(found.reasons())


def plain_load(path: Path) -> Any:
    """What `torch.load` makes of the file without anything of ours; None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, weights_only=True)
        except Exception:  # noqa: BLE001 - because damaged bytes may raise anything there
            return None


def file_effect(before: Any, after: Any) -> str:
    """One of tables.FILE_EFFECTS: what a resume from the damaged file would have met."""
    if after is None:
        return "unreadable"
    return "masked" if _equal(before, after) else "wrong"


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.stride() != other.stride():
            return False
        return torch.equal(words(one), words(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return repr(one) == repr(other)  # NaN equals NaN, and 0.0 is not -0.0
