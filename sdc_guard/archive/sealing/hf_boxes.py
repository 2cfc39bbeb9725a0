"""The tensors that DCP's HuggingFaceStorageWriter left in boxes, one file of safetensors a rank."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...errors import CheckpointUnreadable
from ..dcp.assembled import Part, assembled
from ..dcp.boxes import cover_fault
from ..safetensors_header import Entry, Header, read_header

NAME: Final = re.compile(r"shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors")
_PLACES: Final = "DCP_SHARDING_INFO"  # of a header: name to {"saved_offsets": [...]}
ReadEntry = Callable[[Path, int, Entry], torch.Tensor]


@dataclass(frozen=True)
class Boxed:
    """A tensor, and the boxes that it is put together from.

    Attributes:
        dtype: of its elements.
        shape: the least that holds all boxes: no file says that of the whole.
        parts: where they are, and how they are read.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def read(self) -> torch.Tensor:
        """The whole tensor, on the CPU.

        Raises:
            CheckpointUnreadable: boxes are missing, overlap, or cannot be read.
        """
        lacking = math.prod(self.shape) - sum(math.prod(part.sizes) for part in self.parts)
        if lacking > 0:  # before anything of that size is made
            raise CheckpointUnreadable(f"{lacking:,} of its elements are in no box")
        if fault := cover_fault(self.shape, [(part.offsets, part.sizes) for part in self.parts]):
            raise CheckpointUnreadable(fault)
        return assembled(self.dtype, self.shape, self.parts)


def boxed(
    folder: Path,
    names: Iterable[str],
    form: Callable[[Entry], tuple[torch.dtype, tuple[int, ...]]],
    read: ReadEntry,
) -> tuple[dict[str, Boxed], dict[str, str]]:
    """The tensors in these files by name, and what of the files cannot be read.

    Args:
        folder: of the files.
        names: of the files.
        form: dtype and shape of an entry.
        read: reads one, given its file and where the header ends.
    """
    found: dict[str, tuple[torch.dtype, list[Part]]] = {}
    unread: dict[str, str] = {}
    for name in sorted(names):
        try:
            header = read_header(folder / name)
            if header.trouble:
                raise CheckpointUnreadable(header.trouble, where=str(folder / name))
            places = _places(header)
            for entry in header.entries:
                dtype, shape = form(entry)
                part = Part(
                    _offsets(places, entry, shape),
                    shape,
                    _reader(read, folder / name, header, entry),
                )
                found.setdefault(entry.name, (dtype, []))[1].append(part)
        except CheckpointUnreadable as error:
            unread[name] = error.what
    return {
        name: Boxed(dtype, _shape(parts), tuple(parts)) for name, (dtype, parts) in found.items()
    }, unread


def _reader(
    read: ReadEntry, file: Path, header: Header, entry: Entry
) -> Callable[[], torch.Tensor]:
    return lambda: read(file, header.start, entry)


def _shape(parts: Iterable[Part]) -> tuple[int, ...]:
    ends = [
        tuple(at + size for at, size in zip(part.offsets, part.sizes, strict=True))
        for part in parts
    ]
    return tuple(max(column) for column in zip(*ends, strict=False))


def _places(header: Header) -> Mapping[str, Any]:
    try:
        places = json.loads(header.metadata.get(_PLACES, "{}"))
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict):
        raise CheckpointUnreadable(f"{_PLACES} in its header is damaged")
    return places


def _offsets(places: Mapping[str, Any], entry: Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not places:
        return (0,) * len(shape)  # of whole tensors
    said = places.get(entry.name)
    offsets = said.get("saved_offsets") if isinstance(said, dict) else None
    if not isinstance(offsets, list) or len(offsets) != len(shape):
        raise CheckpointUnreadable(f"{_PLACES} does not say where {entry.name} is")
    if not all(type(at) is int and 0 <= at < 1 << 62 for at in offsets):
        raise CheckpointUnreadable(f"{_PLACES} has no place for {entry.name}")
    return tuple(offsets)
