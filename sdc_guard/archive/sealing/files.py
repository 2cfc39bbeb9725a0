"""The files of a sealed checkpoint, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from ...errors import CheckpointUnreadable
from .seal_file import Seal

_PIECE: Final = 4 << 20  # bytes read at once


@dataclass(frozen=True)
class Compared:
    """What there is against a seal.

    Attributes:
        seal: the seal.
        changed: file to how it is another one than that which was sealed.
        added: whether there are files that were not sealed.
        bytes: that were read.
    """

    seal: Seal
    changed: Mapping[str, str]
    added: bool
    bytes: int

    @property
    def holds(self) -> bool:
        """Whether there is what was sealed, and nothing else."""
        return not self.changed and not self.added


def files_of(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a checkpoint by their names below it."""
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        yield file.relative_to(path).as_posix(), file


def hashed_files(path: Path) -> dict[str, tuple[int, str]]:
    """Size and xxh3-128 of each file of a checkpoint, by name.

    Raises:
        CheckpointUnreadable: a file cannot be read.
    """
    return {name: _hash(name, file) for name, file in files_of(path)}


def compared_with(seal: Seal, path: Path) -> Compared:
    """Every byte of a checkpoint against its seal.

    It asks nothing of what the bytes mean: a file that no reader can make anything of any more is
    compared as well.

    Raises:
        CheckpointUnreadable: a file cannot be read.
    """
    files = dict(files_of(path))
    changed: dict[str, str] = {}
    count = 0
    for name, (size, value) in seal.files.items():
        if name not in files:
            changed[name] = "missing, and it was there when it was sealed"
            continue
        there = _size(files[name])
        if there != size:
            changed[name] = f"{there:,} of {size:,} bytes that were sealed"
            if there > size:
                changed[name] = f"{there:,} bytes, and {size:,} were sealed"
            continue
        count += size
        if _hash(name, files[name])[1] != value:
            changed[name] = "not the bytes that were sealed"
    return Compared(seal, changed, bool(files.keys() - seal.files.keys()), count)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file.name, file, error) from None


def _hash(name: str, file: Path) -> tuple[int, str]:
    buffer = memoryview(bytearray(_PIECE))
    state, size = xxhash.xxh3_128(), 0
    try:
        with file.open("rb", buffering=0) as content:
            while count := content.readinto(buffer):
                state.update(buffer[:count])
                size += count
    except OSError as error:
        raise _unreadable(name, file, error) from None
    return size, state.hexdigest()


def _unreadable(name: str, file: Path, error: OSError) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{name} cannot be read ({error.strerror})", where=str(file))
