"""A torch.save file that is part of a checkpoint in a folder. Nothing in it is run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import torch

from sdc_guard.archive.torch_file import TorchFile, read_torch_file
from sdc_guard.errors import CheckpointUnreadable

from ..content import Content, Integrity, StoredTensor
from .foreign_file import ENOUGH, lfs_pointer

_ZIP: Final = b"PK\x03\x04"
_ZIP_END: Final = b"PK\x05\x06"
_TAIL: Final = 66_000  # bytes within which a zip file's end is, whatever its comment


def part_trouble(path: Path) -> str | None:
    """Why a file cannot be read, by its first and last bytes; None if they show nothing."""
    try:
        with path.open("rb") as file:
            first = file.read(ENOUGH)
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            last = file.read()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if not first:
        return "empty (0 bytes)"
    if pointer := lfs_pointer(first):
        return pointer
    if not any(first):
        return f"zeros where its beginning should be ({size:,} bytes)"
    if first.startswith(_ZIP) and _ZIP_END not in last:
        return f"truncated at {size:,} bytes"
    return None


def open_part(path: Path) -> Content:
    """What a torch.save file holds.

    Raises:
        CheckpointUnreadable: that cannot be told.
    """
    file = _whole(path)
    other = _ties(file)
    stored = {
        name: StoredTensor(tensor.dtype, tuple(tensor.shape), (path,), partial(_held, tensor))
        for name, tensor in file.tensors.items()
        if name not in other
    }
    return Content(stored, other, step=file.step)


def check_part(path: Path) -> Integrity:
    """Read every byte of a torch.save file, and compare with its checksums.

    Raises:
        CheckpointUnreadable: nothing of it can be read.
    """
    file = _whole(path)
    intact = tuple(name for name in file.tensors if name not in file.damaged)
    return Integrity(file.damaged, intact, (), path.stat().st_size)


def _whole(path: Path) -> TorchFile:
    """The one place where such a file is read."""
    return read_torch_file(path)


def _held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _ties(file: TorchFile) -> dict[str, str]:
    """Names of the very elements that an earlier name has, as tied weights are saved."""
    first: dict[object, str] = {}
    ties: dict[str, str] = {}
    for name, tensor in file.tensors.items():
        place = _place(tensor)
        kept = first.setdefault(place, name) if tensor.numel() else name
        if kept != name and (name in file.damaged) == (kept in file.damaged):
            ties[name] = kept
    return ties


def _place(tensor: torch.Tensor) -> object:
    return (
        tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(),
        tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


def readable_part(path: Path) -> Content | str:
    """What a file holds, or why that cannot be told."""
    try:
        return open_part(path)
    except CheckpointUnreadable as error:
        return error.what
