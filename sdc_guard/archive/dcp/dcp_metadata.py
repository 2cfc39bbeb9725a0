"""What a DCP directory holds and where, by its `.metadata`.

DCP's own reader unpickles that file, and so runs what a crafted one says; here it is data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from ...errors import CheckpointUnreadable
from ..foreign_file import lfs_pointer
from ..regular_file import read_regular
from .dcp_layout import known_layout
from .dcp_names import contradiction
from .dcp_pickle import (
    BytesEntry,
    ChunkEntry,
    IndexEntry,
    MetadataEntry,
    PropertiesEntry,
    StorageEntry,
    TensorEntry,
    load_metadata,
)

FILE = ".metadata"
LONGEST = 1 << 30  # bytes of the file; 10 million chunks take 600 MB
_LONGEST_NAME = 10_000  # characters
_CHUNK_BYTES, _FREE_CHUNKS = 8, 100_000  # a chunk takes more, where none is shared
_QUANTIZED = frozenset(
    (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
)  # whose values are only known with their scales
_MOST_DIMENSIONS = 64  # as many as a tensor can have
NEXT_STEP = "it cannot be judged; use another checkpoint"


@dataclass(frozen=True)
class Place:
    """A range of bytes of a shard.

    Attributes:
        file: the shard's name, relative to the directory; never outside of it.
        offset: first byte.
        length: bytes.
        transformed: what the bytes went through (compression …), outermost first.
    """

    file: str
    offset: int
    length: int
    transformed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and where it is; `place` is None if the metadata does not say."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place | None

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class TensorItem:
    """A tensor: what it is as a whole, and its chunks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def foreign(self) -> str:
        """What it is, if it is of a kind that is not evaluated; else ""."""
        return f"a tensor of {self.dtype}" if self.dtype in _QUANTIZED else ""


@dataclass(frozen=True)
class DcpMetadata:
    """A directory's items.

    Attributes:
        tensors: by name, the dotted path in what was saved.
        others: what is no tensor, by name; None where the metadata does not say where it is.
        bytes: of the metadata itself.
        contradiction: in what it says twice; "" if there is none, or nobody looked.
    """

    tensors: Mapping[str, TensorItem]
    others: Mapping[str, Place | None]
    bytes: int
    contradiction: str = ""

    def places(self) -> Iterator[tuple[str, Place]]:
        """Every range of bytes that holds something of an item, with the item's name."""
        for name, item in self.tensors.items():
            for chunk in item.chunks:
                if chunk.place is not None:
                    yield name, chunk.place
        for name, place in self.others.items():
            if place is not None:
                yield name, place


_Items = tuple[Mapping[str, TensorItem], Mapping[str, Place | None]]


class _Malformed(Exception):
    """What is said cannot be."""


def read_metadata(folder: Path, *, compared: bool = False) -> DcpMetadata:
    """The metadata of a DCP directory; nothing in it is run.

    Args:
        folder: the directory.
        compared: whether what it says twice is compared, which takes all of it.

    Raises:
        CheckpointUnreadable: missing, empty, truncated, a Git LFS pointer or no such metadata.
    """
    path = folder / FILE
    try:
        content = _content(path)
        if not compared and (layout := known_layout(content)) is not None:
            return DcpMetadata(*_interpreted_layout(_Same(layout), len(content)), len(content))
        found = _attributes(load_metadata(content))
        why = contradiction(found) if compared else ""
        return DcpMetadata(*_items_of(found, len(content)), len(content), why)
    except CheckpointUnreadable:
        raise
    except _Malformed as error:
        what = f"unreadable: {FILE} says {error}"
    except OSError as error:
        what = f"unreadable: {FILE} cannot be read ({error.strerror})"
    except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
        what = f"unreadable: {FILE} is damaged or truncated ({type(error).__name__})"
    raise CheckpointUnreadable(what, where=str(path), next_step=NEXT_STEP)


def _content(path: Path) -> bytes:
    if not path.is_file():
        what = f"unreadable: {FILE} is no file" if path.exists() else f"{FILE} missing"
        raise CheckpointUnreadable(what, where=str(path), next_step=NEXT_STEP)
    size = path.stat().st_size
    if size > LONGEST:
        raise _Malformed(f"more than is ever read ({size:,} bytes)")
    content = read_regular(path)
    if not content:
        raise _Malformed("nothing: it is empty (0 bytes)")
    if pointer := lfs_pointer(content):
        raise CheckpointUnreadable(f"{FILE}: {pointer}", where=str(path))
    return content


@dataclass(frozen=True, eq=False)
class _Same:
    """Attributes of `Metadata`, equal to the very same ones only."""

    values: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.values is other.values

    def __hash__(self) -> int:
        return id(self.values)


@lru_cache(2)  # keeps what it was given, so that its id stays its own
def _interpreted_layout(layout: _Same, size: int) -> _Items:
    return _items_of(layout.values, size)


def _attributes(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, MetadataEntry):
        raise _Malformed("something else than what DCP writes there")
    return vars(found)


def _items_of(found: Mapping[str, Any], size: int) -> _Items:
    """What the attributes of a `Metadata` say, of a file of that many bytes."""
    items, storage = _dict(found, "state_dict_metadata"), _dict(found, "storage_data")
    places = {}
    for index, entry in storage.items():
        if isinstance(index, IndexEntry):
            offset = _field(index, "offset")
            key = _text(_field(index, "fqn")), None if offset is None else _whole(offset)
            places[key] = _place(entry)
    tensors: dict[str, TensorItem] = {}
    others: dict[str, Place | None] = {}
    chunks = _FREE_CHUNKS + size // _CHUNK_BYTES
    for name, entry in items.items():
        if isinstance(entry, TensorEntry):
            pieces = _field(entry, "chunks")
            chunks -= len(pieces) if isinstance(pieces, list) else 0
            if chunks < 0:  # tensors can share a list of them, and have more than there are bytes
                raise _Malformed("more chunks than it has room for")
            tensors[_text(name)] = _tensor(name, entry, places)
        elif isinstance(entry, BytesEntry):
            others[_text(name)] = places.get((name, None))
        else:
            raise _Malformed(f"neither tensor nor bytes of {_text(name)!r}")
    return tensors, others


def _tensor(
    name: str, entry: TensorEntry, places: Mapping[tuple[str, tuple[int, ...] | None], Place]
) -> TensorItem:
    properties = _field(entry, "properties")
    state = vars(properties).get("state") if isinstance(properties, PropertiesEntry) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(dtype, torch.dtype):
        raise _Malformed(f"no dtype of {name!r}")
    shape, pieces = _whole(_field(entry, "size")), _field(entry, "chunks")
    if not isinstance(pieces, list):
        raise _Malformed(f"no chunks of {name!r}")
    chunks = []
    for piece in pieces:
        if not isinstance(piece, ChunkEntry):
            raise _Malformed(f"no chunk of {name!r}")
        offsets, sizes = _whole(_field(piece, "offsets")), _whole(_field(piece, "sizes"))
        if not len(offsets) == len(sizes) == len(shape) or any(
            start + size > end for start, size, end in zip(offsets, sizes, shape, strict=True)
        ):
            raise _Malformed(f"a chunk of {name!r} that is not within it")
        place = places.get((name, offsets))
        if place is None and len(pieces) == 1:
            place = places.get((name, None))
        chunks.append(Chunk(offsets, sizes, place))
    return TensorItem(dtype, shape, tuple(chunks))


def _place(entry: Any) -> Place:
    if not isinstance(entry, StorageEntry):
        raise _Malformed("no place of an item")
    file = _text(_field(entry, "relative_path"))
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/") or ".." in parts or "\0" in file:
        raise _Malformed(f"an item lies outside of the directory, in {file!r}")
    offset, length = _whole((_field(entry, "offset"), _field(entry, "length")))
    transforms = vars(entry).get("transform_descriptors") or ()
    if not isinstance(transforms, (list, tuple)) or len(transforms) > _MOST_DIMENSIONS:
        raise _Malformed("no names of an item's transformations")
    return Place(file, offset, length, tuple(_text(name) for name in transforms))


def _dict(entry: Mapping[str, Any], name: str) -> dict[Any, Any]:
    value = entry.get(name)
    if not isinstance(value, dict):
        raise _Malformed(f"no {name}")
    return value


def _field(entry: Any, name: str) -> Any:
    return vars(entry).get(name)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise _Malformed("no name of an item")
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair cannot even be printed
        raise _Malformed("no name of an item") from None
    return value


def _whole(values: Any) -> tuple[int, ...]:
    """Sizes or offsets: whole numbers that torch can hold."""
    if not isinstance(values, (tuple, list)) or len(values) > _MOST_DIMENSIONS:
        raise _Malformed("no size where one belongs")
    for value in values:
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise _Malformed("a size that no tensor has")
    return tuple(values)
