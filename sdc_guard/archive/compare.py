"""A checkpoint's bytes against its manifest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
import xxhash

from ..digest import Digest, Place, SingleChange, digest_tensor, find_change
from ..digest.reference import words
from ..digest.span import pieces, runs_of
from ..errors import CheckpointUnreadable
from .manifest import SHARDED, Manifest
from .torch_file import read_torch_file

OTHER_BYTES: Final = "not the bytes that were written, by the checksum of the whole file"
REWRITTEN: Final = "bytes of the file differ, though none in a tensor: names, sizes, numbers"
# of a manifest from before there was one
NO_WHOLE: Final = "its manifest has no checksum of the whole file: names and numbers are not proven"
_PIECE: Final = 1 << 22  # bytes


@dataclass(frozen=True)
class TensorMismatch:
    """A tensor whose bytes are not the expected ones; `change` when it is one element."""

    name: str
    kind: str | None
    layer: str | None
    change: SingleChange | None


@dataclass(frozen=True)
class ByteCheck:
    """What comparing a checkpoint's bytes with its manifest found.

    Attributes:
        mismatches: tensors that differ.
        missing: tensors that should be there and are not.
        crc: tensors whose record fails the file's own CRC-32.
        unlisted: tensors in the file that the manifest does not know.
        rewritten: the file's checksum is another one than that of the file which was written.
        size: bytes that there are and that were written, where these differ.
        unread: why its tensors could not be read, in a file that is not the one which was written.
    """

    mismatches: tuple[TensorMismatch, ...] = ()
    missing: tuple[str, ...] = ()
    crc: dict[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    rewritten: bool = False
    size: tuple[int, int] | None = None
    unread: str = ""

    @property
    def sound(self) -> bool:
        """Whether every expected byte is there."""
        tensors = self.mismatches or self.missing or self.crc or self.unlisted
        return not (tensors or self.rewritten or self.size)

    def reasons(self) -> list[str]:
        """One line for each thing that is wrong."""
        lines = [] if self.size is None else [other_size(*self.size)]
        changes = {found.name: in_words(found.change) for found in self.mismatches}
        lines += [f"{name}: {reason}{changes.get(name, '')}" for name, reason in self.crc.items()]
        lines += [f"{name}: not in the file" for name in self.missing]
        lines += [f"{name}: not in the manifest" for name in self.unlisted]
        lines += [
            f"{name}: bytes differ from the recorded digest{where}"
            for name, where in changes.items()
            if name not in self.crc or not where
        ]
        if self.rewritten and not lines:
            lines.append(OTHER_BYTES if self.unread else REWRITTEN)
        if self.unread and self.size is None:
            lines[0] = f"{lines[0]}; {self.unread}"
        return lines


def in_words(change: SingleChange | None) -> str:
    """Which element changed and which of its bits, in brackets; "" if that is not known."""
    return "" if change is None else f" (element {change.index}, bits {change.bits})"


def check_bytes(folder: Path, manifest: Manifest, *, sealed: bool = False) -> ByteCheck:
    """Re-read a checkpoint's files and compare them, and every tensor, with the manifest.

    Size and checksum of the whole file are compared first: a file that is not the one which was
    written is that, too, where it is cut off or nothing in it can be found any more.

    Args:
        folder: of the checkpoint.
        manifest: its own.
        sealed: whether a file that is bit for bit the one which was compared with the digests when
            it was written, and fitted them, needs no more: it is not held in memory then.

    Raises:
        CheckpointUnreadable: the file is missing, or not readable as a checkpoint and all the
            same the one that was written, as far as the manifest says.
    """
    if manifest.format == SHARDED:
        from .sharded.check import check_sharded

        return check_sharded(folder, manifest)
    path = folder / manifest.file
    size = other_file(path, manifest)
    hashed = size is None and bool(manifest.xxh3) and path.is_file()
    found_whole = checksum(path) if hashed else ""
    if sealed and hashed and found_whole == manifest.xxh3 and manifest.status == "clean":
        return ByteCheck()
    rewritten = hashed and not same_but_a_digit(found_whole, manifest.xxh3)
    try:
        content = read_torch_file(path)
    except CheckpointUnreadable as error:
        if size is None and not rewritten:
            raise
        return ByteCheck(rewritten=rewritten, size=size, unread=error.what)
    found = compare_tensors(content.tensors, manifest, content.damaged)
    return replace(found, rewritten=rewritten, size=size)


def same_but_a_digit(found: str, expected: str) -> bool:
    """Whether two checksums in hexadecimal are equal, or differ in one digit.

    Bytes that differ give checksums that differ in half of their bits. One digit is what became of
    a number in the file that says what is expected: by chance it is so once in 2¹¹⁹.
    """
    if len(found) != len(expected):
        return False
    return sum(a != b for a, b in zip(found, expected, strict=True)) <= 1


def other_file(path: Path, manifest: Manifest) -> tuple[int, int] | None:
    """Bytes that there are and that were written; None where these are as many, or it is gone."""
    size = path.stat().st_size if path.is_file() else manifest.bytes
    return None if size == manifest.bytes else (size, manifest.bytes)


def other_size(size: int, written: int) -> str:
    """That a file has another size than it was written with."""
    if size < written:
        kind = "truncated" if size else "empty"
        return f"{kind} ({size:,} of {written:,} bytes)"
    return f"{size:,} bytes, and {written:,} were written"


def checksum(path: Path) -> str:
    """xxh3-128 of a file's bytes, in hexadecimal.

    Raises:
        CheckpointUnreadable: it cannot be read to its end.
    """
    found = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise CheckpointUnreadable(
            f"cannot be read ({error.strerror})", where=str(path), next_step="use another one"
        ) from None
    return found.hexdigest()


def compare_tensors(
    tensors: dict[str, torch.Tensor], manifest: Manifest, crc: dict[str, str] | None = None
) -> ByteCheck:
    """Compare tensors, by their dotted path, with the manifest's digests."""
    mismatches = []
    for name, entry in manifest.tensors.items():
        if name in tensors and (found := digest_tensor(tensors[name])) != entry.digest:
            change = solve_change(tensors[name], entry.digest, found)
            mismatches.append(TensorMismatch(name, entry.kind, entry.layer, change))
    missing = tuple(name for name in manifest.tensors if name not in tensors)
    unlisted = tuple(name for name in tensors if name not in manifest.tensors)
    return ByteCheck(tuple(mismatches), missing, dict(crc or {}), unlisted)


def solve_change(
    tensor: torch.Tensor, expected: Digest, found: Digest, *, place: Place = 0
) -> SingleChange | None:
    """The one element by which `tensor` differs from what had the digest `expected`, proven by H.

    Args:
        tensor: as it is.
        expected: digest that it should have.
        found: digest that it has.
        place: of the tensor, if it is a part of a whole one; the index found is that in the whole.
    """
    for piece, where in pieces(tensor, place):
        span = runs_of(where, piece.numel(), 2 if tensor.is_complex() else 1)
        change = find_change(words(piece), expected, found, place=span)
        if change is not None:
            return change
    return None
