"""Files of `torch.save`, of scripts that never saw a guard.

What is in their zip directory and their pickle is read at once, a tensor when it is asked for.
Tensors are read and not mapped: a sector that a disk cannot read is then an error to tell of, and
does not end the process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import torch

from sdc_guard.archive.extent import read_extent
from sdc_guard.archive.inert_pickle import StoredTensor as Described
from sdc_guard.archive.inventory import Inventory
from sdc_guard.archive.read_trouble import raise_trouble
from sdc_guard.archive.torch_damage import LEGACY, ZIP, head_of, pointer_in
from sdc_guard.archive.torch_records import NEXT_STEP, TorchRecords, torch_records, torch_structure
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content, Integrity
from . import torch_legacy
from .described import content_of, described, take_stock
from .reader import Reader
from .torch_crc import check_records

FORMAT: Final = "torch"
_HEAD: Final = 1 << 14  # bytes
_SUFFIXES = (".pt", ".pth", ".bin")
# beside a model's file, of the same training step, and no checkpoint by itself
_PARTS = ("optimizer.", "scheduler.", "scaler.", "rng_state", "training_args.", "random_states")


def find(path: Path) -> list[Checkpoint]:
    """The torch.save files in a folder, or the one that `path` is."""
    if path.is_file():
        known = path.suffix in _SUFFIXES or head_of(path).startswith((ZIP, LEGACY))
        return [describe(path, FORMAT)] if known else []
    if not path.is_dir():
        return []
    return [describe(file, FORMAT) for file in sorted(path.iterdir()) if _is_one(file)]


def _is_one(file: Path) -> bool:
    if file.suffix not in _SUFFIXES or file.name.startswith(_PARTS) or not file.is_file():
        return False
    if file.suffix != ".bin":
        return True
    head = head_of(file)  # anything may be called so
    return head.startswith((ZIP, LEGACY)) or pointer_in(head) is not None


def describe(file: Path, format: str) -> Checkpoint:
    """A torch.save file as a checkpoint, of either layout; its tensors are not read."""
    if head_of(file).startswith(LEGACY):
        return torch_legacy.describe(file, torch_legacy.FORMAT if format == FORMAT else format)
    return described(file, format, open_file)


def open_file(file: Path) -> Content:
    """What a zip-format torch.save file holds, lazily.

    Raises:
        CheckpointUnreadable: it is damaged, or none.
    """
    return _opened(file)[1]


def _opened(file: Path) -> tuple[TorchRecords, Content, Inventory]:
    if head_of(file)[257:262] == b"ustar":
        raise CheckpointUnreadable(
            "unreadable: the tar format of torch.save before 0.2",
            where=str(file),
            next_step="load it with torch.load where it is trusted, and save it again",
        )
    records = torch_records(file)
    structure = torch_structure(records)
    found = take_stock(file, structure.root, structure.size)
    reading = partial(_read, records), partial(_head, records)
    return records, content_of(file, found, *reading), found


def _read(records: TorchRecords, stored: Described) -> torch.Tensor:
    record = f"data/{stored.key}"
    try:
        if record not in records.records:
            raise ValueError("it is not in the file")
        size = records.records[record].file_size
        return read_extent(stored, size, partial(records.read, record))
    except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
        raise_trouble(error, records.path, f"record {record}")
        raise CheckpointUnreadable(
            f"record {record} cannot be read ({str(error) or type(error).__name__})",
            where=str(records.path),
            next_step=NEXT_STEP,
        ) from None


def _head(records: TorchRecords, stored: Described) -> bytes:
    if len(stored.shape) != len(stored.stride):
        return b""
    few = min(prod(stored.shape), _HEAD // stored.dtype.itemsize)
    content = _read(records, replace(stored, shape=(few,), stride=(1,)))
    return content.view(torch.uint8).numpy().tobytes() if few else b""


def check_file(file: Path) -> Integrity:
    """Read every byte of a torch.save file; one of zip format keeps checksums.

    Raises:
        CheckpointUnreadable: nothing of it can be read.
    """
    if head_of(file).startswith(LEGACY):
        return torch_legacy.check_file(file)
    records, _, found = _opened(file)
    return check_records(records, found)


def open_any(file: Path) -> Content:
    """What a torch.save file of either layout holds, lazily.

    Raises:
        CheckpointUnreadable: it is damaged, or none.
    """
    return torch_legacy.open_file(file) if head_of(file).startswith(LEGACY) else open_file(file)


READER: Final = Reader(
    format=FORMAT,
    find=find,
    open=lambda checkpoint: open_any(checkpoint.path),
    check=lambda checkpoint: check_file(checkpoint.path),
)
