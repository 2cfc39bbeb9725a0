"""The header of a safetensors file: read within bounds, and what is wrong with it in words.

The format, by its specification: eight bytes with the header's length, a JSON object that gives
each tensor's data type, shape and place, then the tensors, without gaps. The library that is named
after it refuses a damaged file without saying what is left of it, and one with bytes after the
last tensor altogether; so the header is read here.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import CheckpointUnreadable
from ..shown import shown
from .foreign_file import ENOUGH, lfs_pointer, other_kind
from .regular_file import open_regular

_LENGTH: Final = 8  # bytes of the number that the file begins with
_LONGEST: Final = 100_000_000  # bytes of a header that the library takes
_METADATA: Final = "__metadata__"
_LARGEST: Final = 2**63 - 1
_DIMENSIONS: Final = 64  # the most that torch takes

BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of an element, by the format's name of its data type."""


class Entry(NamedTuple):
    """A tensor as the header gives it; `begin` and `end` in bytes after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a header says, and how much of it the file holds.

    Attributes:
        entries: the tensors, in the order in which they lie in the file.
        metadata: texts that were saved beside them.
        start: first byte after the header.
        held: bytes of the file after the header.
    """

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]
    start: int
    held: int

    @property
    def needed(self) -> int:
        """Bytes after the header that the tensors take."""
        return self.entries[-1].end if self.entries else 0

    @property
    def trailing(self) -> int:
        """Bytes after the last tensor."""
        return max(0, self.held - self.needed)

    @property
    def trouble(self) -> str | None:
        """Why its tensors cannot all be judged; None if they can."""
        if not self.entries:
            return "no tensors in file"
        if self.held < self.needed:
            return f"safetensors data incomplete: {self.held:,} of {self.needed:,} bytes"
        return None


class _Damaged(ValueError):
    """What is wrong with a header, in words."""


def read_header(path: Path) -> Header:
    """Read a file's header. Never more than 100 MB are read or held, whatever it says.

    Data that is cut short is no error here: `Header.trouble` tells it.

    Raises:
        CheckpointUnreadable: no header, an incomplete or contradictory one, or another kind of
            file.
    """
    try:
        text, held = _beginning(path)
        return _header(text, held)
    except _Damaged as damage:
        what = str(damage)
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
    raise CheckpointUnreadable(
        what, where=str(path), next_step="it cannot be judged; use another checkpoint"
    )


def _beginning(path: Path) -> tuple[bytes, int]:
    """The header's text, and how many bytes of the file follow it."""
    if not path.is_file():
        raise _Damaged("not a file" if path.exists() else "no such file")
    with open_regular(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        first = file.read(ENOUGH)
        if not first:
            raise _Damaged("safetensors header incomplete: the file is empty (0 bytes)")
        if pointer := lfs_pointer(first):
            raise _Damaged(pointer)
        if len(first) < _LENGTH:
            raise _Damaged(f"safetensors header incomplete: {len(first)} of {_LENGTH} bytes")
        length = int.from_bytes(first[:_LENGTH], "little")
        if not length:
            raise _Damaged("safetensors header damaged: its length is 0")
        if length > _LONGEST:
            raise _Damaged(_no_length(first, length))
        if _LENGTH + length > size:
            raise _Damaged(f"safetensors header incomplete: {size - _LENGTH:,} of {length:,} bytes")
        file.seek(_LENGTH)
        return file.read(length), size - _LENGTH - length


def _no_length(first: bytes, length: int) -> str:
    kind = other_kind(first)
    if kind is not None:
        return f"not a safetensors file: {kind}"
    return f"safetensors header damaged, or another file: a length of {length:,} bytes"


def _header(text: bytes, held: int) -> Header:
    document = _parsed(text, held)
    metadata = document.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(type(one) is str for one in metadata.values()):
        raise _Damaged(f"safetensors header damaged: {_METADATA} does not give texts by name")
    entries = [_entry(name, fields) for name, fields in document.items()]
    entries.sort(key=_place)
    _refuse_overlaps(entries)
    return Header(tuple(entries), metadata, _LENGTH + len(text), held)


def _place(entry: Entry) -> tuple[int, int]:
    return entry.begin, entry.end


def _parsed(text: bytes, held: int) -> dict[str, Any]:
    try:
        decoded = text.decode("utf-8")
        document = json.loads(decoded, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except _Damaged:
        raise
    except (ValueError, RecursionError) as error:
        # without bytes behind it, not even a sound header could have held a tensor of any size
        empty = "" if held else "no tensors in file; "
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise _Damaged(f"{empty}safetensors header damaged: not JSON{where}") from None
    if not isinstance(document, dict):
        raise _Damaged("safetensors header damaged: not a JSON object")
    if "\\u" in decoded:
        _refuse_no_text(document)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Damaged(f"safetensors header damaged: {_shown(twice)} twice")
    return found


def _refuse_no_text(names: Iterable[str]) -> None:
    """JSON can escape halves of signs, which no other text can hold."""
    try:
        for name in names:
            name.encode()
    except UnicodeEncodeError:
        raise _Damaged("safetensors header damaged: a name that is no text") from None


def _refuse_constant(text: str) -> Any:
    raise _Damaged(f"safetensors header damaged: {text} in it")


def _entry(name: str, fields: Any) -> Entry:
    try:
        return _sound(name, fields)
    except _Damaged as damage:
        what = f"safetensors header damaged: tensor {_shown(name)} {damage}"
    raise _Damaged(what)


def _sound(name: str, fields: Any) -> Entry:
    try:
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    except (TypeError, KeyError):
        raise _Damaged("lacks dtype, shape or data_offsets") from None
    width = BITS.get(dtype) if type(dtype) is str else None
    if width is None:
        raise _Damaged(f"is of the unknown dtype {_shown(str(dtype))}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Damaged(f"has offsets out of range, {_shown(str(offsets))}")
    if not _are_sizes(shape) or len(shape) > _DIMENSIONS or _largest(shape) * width > _LARGEST:
        raise _Damaged(f"has the impossible shape {_shown(str(shape))}")
    bits, size = math.prod(shape) * width, offsets[1] - offsets[0]
    if bits % 8:
        raise _Damaged("ends within a byte")
    if bits != 8 * size:
        raise _Damaged(f"takes {bits // 8:,} bytes by its shape, {size:,} by its offsets")
    return Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _are_sizes(value: Any) -> bool:
    if type(value) is not list:
        return False
    for one in value:  # noqa: SIM110 - a header has thousands of them, and all() takes longer
        if type(one) is not int or one < 0:
            return False
    return True


def _largest(shape: list[int]) -> int:
    """Elements, were there no dimension of 0: torch multiplies the others, too."""
    return math.prod([one or 1 for one in shape]) if 0 in shape else math.prod(shape)


def _refuse_overlaps(entries: list[Entry]) -> None:
    if entries and entries[0].begin:
        raise _Damaged(
            f"safetensors header damaged: offsets out of range, {entries[0].begin:,} bytes before "
            f"the first tensor, {_shown(entries[0].name)}"
        )
    for one, other in pairwise(entries):
        if other.begin < one.end:
            raise _Damaged(
                f"safetensors header damaged: tensors {_shown(one.name)} and {_shown(other.name)} "
                "overlap"
            )
        if other.begin > one.end:
            raise _Damaged(
                f"safetensors header damaged: offsets out of range, {other.begin - one.end:,} "
                f"bytes between {_shown(one.name)} and {_shown(other.name)}"
            )


def _shown(text: str) -> str:
    return shown(text[:80])
