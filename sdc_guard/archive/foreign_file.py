"""What a file is that is not what its name says, by its first bytes."""

from __future__ import annotations

import re
from typing import Final

ENOUGH: Final = 512  # bytes of a file's beginning that are looked at

_LFS: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/[^\n]*\n(?:.*\n)*?size (\d+)")
_KINDS: Final = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save before 1.6"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"(\xb5/\xfd", "compressed with zstd"),
    (b"<!DOCTYPE", "an HTML page, as a failed download leaves"),
    (b"<html", "an HTML page, as a failed download leaves"),
    (b"<?xml", "an XML document, as a failed download leaves"),
)
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")


def lfs_pointer(beginning: bytes) -> str | None:
    """What a Git LFS pointer stands for, in words; None if it is none."""
    pointer = _LFS.match(beginning)
    if pointer is None:
        return None
    return f"Git LFS pointer; real content ({int(pointer[1]):,} bytes) not downloaded"


def other_kind(beginning: bytes) -> str | None:
    """What kind of file begins like this, in words; None if that is not known."""
    for magic, what in _KINDS:
        if beginning.startswith(magic):
            return what
    if _PICKLE.match(beginning):
        return "a Python pickle, which is not read"
    if beginning.lstrip()[:1] in (b"{", b"["):
        return "JSON text"
    return None
