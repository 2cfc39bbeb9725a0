"""A torch.save file that is part of a checkpoint in a folder. Nothing in it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sdc_guard.archive.foreign_file import ENOUGH, lfs_pointer
from sdc_guard.archive.regular_file import open_regular
from sdc_guard.errors import CheckpointUnreadable

from ..content import Content, Integrity
from .listing import is_file
from .torch_zip import check_file, open_any

_ZIP: Final = b"PK\x03\x04"
_ZIP_END: Final = b"PK\x05\x06"
_TAIL: Final = 66_000  # bytes within which a zip file's end is, whatever its comment


def part_trouble(path: Path) -> str | None:
    """Why a file cannot be read, by its first and last bytes; None if they show nothing."""
    if not is_file(path):
        return "not a file"
    try:
        with open_regular(path) as file:
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
    """What a torch.save file holds, lazily.

    Raises:
        CheckpointUnreadable: that cannot be told.
    """
    return open_any(path)


def check_part(path: Path) -> Integrity:
    """Read every byte of a torch.save file, and compare with its checksums.

    Raises:
        CheckpointUnreadable: nothing of it can be read.
    """
    return check_file(path)


def readable_part(path: Path) -> Content | str:
    """What a file holds, or why that cannot be told."""
    try:
        return open_part(path)
    except CheckpointUnreadable as error:
        return error.what
