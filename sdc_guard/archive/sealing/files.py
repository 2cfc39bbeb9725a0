"""The files of a sealed checkpoint, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from ...errors import CheckpointUnreadable
from ..compare import same_but_a_digit
from .seal_file import Seal

_PIECE: Final = 4 << 20  # bytes read at once
_OTHER: Final = "not the bytes that were sealed"
_SEAL_CHANGED: Final = "its seal itself changed, and has no checksum of itself (version 1)"
_VERSION_1: Final = "by a seal of version 1, which has no checksum of itself"


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


def compared_with(seal: Seal, path: Path, step: int | None = None) -> Compared:
    """Every byte of the checkpoint at `path` against its seal.

    It asks nothing of what the bytes mean: a file that no reader can make anything of any more is
    compared as well. A seal that came along with another name fits where the bytes do.

    Args:
        seal: of it.
        path: its own.
        step: that the checkpoint itself says it is of; None if that is not known.

    Raises:
        CheckpointUnreadable: a file cannot be read, or the seal is no testimony: damaged, of a
            newer version, or of another checkpoint.
    """
    found = _compared(path, seal)
    if found.changed and (why := _no_testimony(path, found, step)):
        raise CheckpointUnreadable(why, where=str(path))
    return found


def _compared(path: Path, seal: Seal) -> Compared:
    files = dict(files_of(path))
    sealed = dict(seal.files)
    if len(sealed) == 1 and path.is_file():
        sealed = dict(zip(files, sealed.values(), strict=True))  # whatever it was called then
    changed: dict[str, str] = {}
    count = 0
    for name, (size, value) in sealed.items():
        if name not in files:
            changed[name] = "missing, and it was there when it was sealed"
            continue
        there = _size(files[name])
        if there == size or not seal.checked:
            count += there
            found = _hash(name, files[name])[1]
            if found == value and there == size:
                continue
            if not seal.checked and same_but_a_digit(found, value):
                raise CheckpointUnreadable(_SEAL_CHANGED, where=str(path))
        changed[name] = _other_size(there, size) if there != size else _OTHER
        if not seal.checked:
            changed[name] += f", {_VERSION_1}"
    return Compared(seal, changed, bool(files.keys() - sealed.keys()), count)


def _other_size(there: int, size: int) -> str:
    if there > size:
        return f"{there:,} bytes, and {size:,} were sealed"
    return f"{there:,} of {size:,} bytes that were sealed"


def _no_testimony(path: Path, found: Compared, step: int | None) -> str:
    """Why a seal that does not fit convicts nothing; "" if it does."""
    seal = found.seal
    if not is_of(path, seal):
        return f"its seal is of another file ({_sealed_name(seal)}), and says nothing of this one"
    if not seal.checked and step not in (None, seal.step) and len(found.changed) == len(seal.files):
        return f"its seal is of another step ({seal.step}, version 1), and says nothing of this one"
    if not seal.checked and found.added and any("missing" in why for why in found.changed.values()):
        return "its seal names other files, and has no checksum of itself (version 1)"
    return ""


def is_of(path: Path, seal: Seal) -> bool:
    """Whether a seal is of a checkpoint of that name; what version 1 does not say counts as so."""
    return _sealed_name(seal) in ("", path.name) or (not seal.name and path.is_dir())


def _sealed_name(seal: Seal) -> str:
    return seal.name or (next(iter(seal.files)) if len(seal.files) == 1 else "")


def files_of(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a checkpoint by their names below it."""
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        yield file.relative_to(path).as_posix(), file


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file.name, file, error) from None


def hashed_files(path: Path) -> dict[str, tuple[int, str]]:
    """Size and xxh3-128 of each file of a checkpoint, by name.

    Raises:
        CheckpointUnreadable: a file cannot be read.
    """
    return {name: _hash(name, file) for name, file in files_of(path)}


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
