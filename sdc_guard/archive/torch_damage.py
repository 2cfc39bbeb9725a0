"""Why a file is not a readable one of `torch.save`: in a line, from its first and last bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .inert_pickle import InertUnpickler
from .regular_file import open_regular

LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled
ZIP: Final = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22  # without a comment, which torch.save does not write
_LFS = re.compile(rb"version https://git-lfs[^\n]*\n.*?size (\d+)", re.DOTALL)
_TAIL = 1000
_HEAD = 16 * 2**20  # holds the structure of a hundred thousand tensors


def head_of(path: Path, size: int = 300) -> bytes:
    """The first bytes of a file; b"" if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


def pointer_in(head: bytes) -> str | None:
    """What a Git LFS pointer says, given a file's first bytes; None if it is none."""
    found = _LFS.match(head)
    if found is None:
        return None
    return f"a Git LFS pointer; its content ({int(found[1]):,} bytes) was not downloaded"


def why_unreadable(path: Path, error: Exception) -> str:
    """What is wrong with a file whose zip directory could not be read.

    Args:
        error: how reading it failed.
    """
    if not path.exists():
        return "no checkpoint file there"
    if path.is_dir():
        return "a folder, not a torch.save file"
    size = path.stat().st_size
    if size == 0:
        return "unreadable: the file is empty (0 bytes)"
    start = head_of(path)
    if not start:
        denied = isinstance(error, PermissionError)
        what = "no permission" if denied else getattr(error, "strerror", None)
        return f"unreadable: {what or 'it cannot be opened'}"
    if start.startswith(LEGACY):
        return "unreadable: the format of torch.save before 1.6, which holds no checksums"
    if pointer := pointer_in(start):
        return pointer
    if start.startswith(ZIP):
        expected = _expected(path, size)
        if expected is not None:
            return f"unreadable: truncated ({size:,} of {expected} bytes)"
        if _ZIP_END not in _tail(path, size):
            return f"unreadable: truncated at {size:,} bytes, the zip directory at its end is gone"
    if not start.strip(b"\0"):
        return f"unreadable: it begins with zeros ({size:,} bytes), as a file never written does"
    if ZIP.startswith(start) or LEGACY.startswith(start):
        return f"unreadable: truncated at {size:,} bytes"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"unreadable: not a torch.save zip file ({size:,} bytes; {reason})"


def _tail(path: Path, size: int) -> bytes:
    with open_regular(path) as file:
        file.seek(max(0, size - _TAIL))
        return file.read()


def _expected(path: Path, size: int) -> str | None:
    """How many bytes a truncated zip file should have; None where it does not tell."""
    tail = _tail(path, size)
    place = tail.rfind(_ZIP_END)
    if place >= 0:
        whole = size - len(tail) + place + _ZIP_END_BYTES
        return f"{whole:,}" if whole > size else None
    whole = _storage_bytes(head_of(path, _HEAD))
    return f"at least {whole:,}" if whole > size else None


def _storage_bytes(head: bytes) -> int:
    """Bytes of the storages that the structure names: torch.save writes it first."""
    lengths = [int.from_bytes(head[at : at + 2], "little") for at in (26, 28)]
    try:
        machine = InertUnpickler(head, 30 + sum(lengths))
        machine.load()
    except Exception:  # noqa: BLE001 - because cut pickles raise errors of every kind
        return 0
    return machine.at + sum(
        max(0, storage.numel) * storage.dtype.itemsize for storage in machine.storages.values()
    )
