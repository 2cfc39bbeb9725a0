"""What kind of file a log is, by what it holds and not by its name."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from ..errors import LogUnreadable

_BEGINNING: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 22  # characters
_LFS: Final = b"version https://git-lfs.github.com/spec/"
_GIVE_A_LOG: Final = "give a trainer_state.json, CSV, JSON lines or TensorBoard file"
_EXPORT: Final = "export the run's history as CSV"
_UNPACK: Final = "unpack it first"

# What begins a file that is no log, and what to do about it.
_OTHERS: Final = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes checkpoints", _GIVE_A_LOG),
    (b"PAR1", "a Parquet file", "write its columns as CSV"),
    (b"SQLite format 3", "an SQLite database", _EXPORT),
    (b":W&B", "the binary record of wandb", _EXPORT),
    (b"\x89HDF", "an HDF5 file", _GIVE_A_LOG),
    (b"(\xb5/\xfd", "compressed with zstd", _UNPACK),
    (b"BZh", "compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ", "compressed with xz", _UNPACK),
)


def is_event_file(head: bytes) -> bool:
    """Whether a file begins as TensorBoard's event files do: a record that says its version."""
    return b"brain.Event:" in head[12:64]


def beginning(path: Path) -> bytes:
    """The first 64 KB, unpacked if the file is compressed with gzip.

    Raises:
        LogUnreadable: it is empty, a Git LFS pointer, or plainly something else than a log.
    """
    with path.open("rb") as file:
        head = file.read(_BEGINNING)
    if head.startswith(b"\x1f\x8b"):
        with reading(path), gzip.open(path) as unpacked:
            head = unpacked.read(_BEGINNING)
    if not head.strip():
        raise LogUnreadable("the file is empty", where=str(path), next_step=_GIVE_A_LOG)
    _refuse(path, head)
    return head


def _refuse(path: Path, head: bytes) -> None:
    if head.startswith(_LFS):
        size = re.search(rb"^size (\d+)", head, re.MULTILINE)
        real = f"; real content ({int(size[1]):,} bytes) not downloaded" if size else ""
        raise LogUnreadable(
            f"Git LFS pointer{real}", where=str(path), next_step="git lfs pull downloads it"
        )
    for magic, what, advice in _OTHERS:
        if head.startswith(magic):
            raise LogUnreadable(f"not a log: {what}", where=str(path), next_step=advice)
    if re.match(rb"\x80[\x02-\x05]", head):
        raise LogUnreadable(
            "not a log: a Python pickle, which is not read", where=str(path), next_step=_GIVE_A_LOG
        )
    if head[8:10] == b'{"' and head[4:8] == b"\0\0\0\0":
        raise LogUnreadable("not a log: a safetensors file", where=str(path), next_step=_GIVE_A_LOG)
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in head and not wide and not is_event_file(head):
        raise LogUnreadable("not a log: a binary file", where=str(path), next_step=_GIVE_A_LOG)


def encoding(head: bytes) -> str:
    """The text's encoding: by its mark, else UTF-8, else Latin-1, which reads any byte."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def lines_of(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file, each with its end.

    Raises:
        LogUnreadable: one is longer than four million characters: it is not held in memory.
    """
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise LogUnreadable(
                f"line {number:,} is longer than {_LONGEST_LINE:,} characters", where=str(path),
                next_step=_GIVE_A_LOG,
            )  # fmt: skip
        yield line


def refuse_beyond(largest: int, path: Path) -> None:
    """See that a JSON document is small enough, without holding it in memory.

    Args:
        largest: bytes, unpacked.
        path: of the document.

    Raises:
        LogUnreadable: it is larger, or its gzip is damaged.
    """
    with reading(path), path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        size = _unpacked(file, largest) if packed else path.stat().st_size
    if size > largest:
        raise LogUnreadable(
            f"too large a JSON document, of more than {largest >> 20} MB", where=str(path),
            next_step="give its rows as CSV or JSON lines, which are read piece by piece",
        )  # fmt: skip


def _unpacked(file: BinaryIO, enough: int) -> int:
    """Bytes that a gzip file unpacks to, counted until there are more than enough."""
    file.seek(0)
    size = 0
    with gzip.open(file) as unpacked:
        while size <= enough and (piece := unpacked.read(1 << 20)):
            size += len(piece)
    return size


@contextlib.contextmanager
def open_text(path: Path, coding: str) -> Iterator[TextIO]:
    """The file as text, unpacked on the way; bytes that are none in this encoding are replaced."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(gzip.open(file)) if packed else file
            text = io.TextIOWrapper(raw, encoding=coding, errors="replace", newline="")
            stack.callback(text.detach)
            with reading(path):
                yield text


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What gzip and text raise over damaged bytes, as one error."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogUnreadable(
            f"the gzip file is damaged or cut short ({error})", where=str(path),
            next_step="copy it again",
        ) from None  # fmt: skip
    except UnicodeError as error:
        raise LogUnreadable(f"its text cannot be read ({error})", where=str(path)) from None
