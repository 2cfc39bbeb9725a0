"""The tensors of a DCP directory, put together from their chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ...errors import CheckpointUnreadable
from ..content import StoredTensor
from ..inert_pickle import Inert, InertUnpickler
from ..inert_pickle import StoredTensor as Stub
from .assembled import Part, assembled
from .boxes import cover_fault
from .dcp_metadata import NEXT_STEP, Chunk, Place, TensorItem
from .saved_values import load_values
from .saved_zip import DamagedItem, SavedZip, Source, opened


def source(folder: Path, place: Place) -> Source:
    """Where an item is.

    Raises:
        DamagedItem: it went through a transformation, and cannot be read.
    """
    if place.transformed:
        raise DamagedItem(f"its bytes went through {', '.join(place.transformed)}: not readable")
    return Source(folder / place.file, place.offset, place.length)


def stored_tensor(folder: Path, name: str, item: TensorItem) -> StoredTensor:
    """A tensor of a directory, to be read when it is asked for."""
    places = [chunk.place for chunk in item.chunks if chunk.place is not None]
    files = tuple(dict.fromkeys(folder / place.file for place in places))
    read = partial(_told, folder, name, partial(_read, folder, item))
    return StoredTensor(item.dtype, item.shape, files, read)


def tensor_within(zip_source: Source, folder: Path, name: str, stub: Stub) -> StoredTensor:
    """A tensor within an item that holds more than it, to be read when it is asked for."""

    def read() -> torch.Tensor:
        with opened(zip_source) as saved:
            return saved.tensor(stub)

    file = (zip_source.file,)
    return StoredTensor(stub.dtype, stub.shape, file, partial(_told, folder, name, read))


def check_foreign(saved: SavedZip) -> None:
    """Raises DamagedItem if a chunk of a kind that is not evaluated holds no such tensor."""
    found = InertUnpickler(saved.structure()).load()
    if not isinstance(found, Inert) or found.arguments is None:
        raise DamagedItem("the item there is no tensor of that kind")


def chunk_stub(saved: SavedZip, item: TensorItem, chunk: Chunk) -> Stub:
    """The one tensor of a chunk's item, as its file describes it.

    Raises:
        DamagedItem: it holds another than the metadata says.
    """
    found = load_values(saved.structure()).tensors
    stub = found.get("")
    if stub is None or len(found) > 1:
        raise DamagedItem("the item there is no tensor")
    if (stub.dtype, stub.shape) != (item.dtype, chunk.sizes):
        told = f"{stub.dtype} of shape {list(stub.shape)}"
        expected = f"{item.dtype} of shape {list(chunk.sizes)}"
        raise DamagedItem(f"the item there is {told}, the metadata says {expected}")
    saved.fits(stub)
    return stub


def fault(item: TensorItem) -> str:
    """What the metadata alone shows to be wrong with a tensor; "" if nothing."""
    lost = [chunk for chunk in item.chunks if chunk.place is None]
    if lost:
        return f"the metadata does not say where its chunk at {list(lost[0].offsets)} is"
    # each element takes its bytes in some file: what is larger is no tensor, and fills no memory
    room = _bytes_within([chunk.place for chunk in item.chunks if chunk.place])
    if (
        not (_transformed(item) or item.foreign)
        and math.prod(item.shape) * item.dtype.itemsize > room
    ):
        return f"it is larger than the bytes that hold it ({room:,})"
    return cover_fault(item.shape, [(chunk.offsets, chunk.sizes) for chunk in item.chunks])


def _bytes_within(places: list[Place]) -> int:
    """Bytes of the files that are within at least one of the places."""
    total, file, end = 0, "", 0
    for place in sorted(places, key=lambda place: (place.file, place.offset)):
        if place.file != file:
            file, end = place.file, 0
        total += max(0, place.offset + place.length - max(end, place.offset))
        end = max(end, place.offset + place.length)
    return total


def _transformed(item: TensorItem) -> bool:
    return any(chunk.place and chunk.place.transformed for chunk in item.chunks)


def _read(folder: Path, item: TensorItem) -> torch.Tensor:
    wrong = fault(item)
    if wrong:
        raise DamagedItem(wrong)
    parts = [
        Part(chunk.offsets, chunk.sizes, partial(_chunk, folder, item, chunk))
        for chunk in item.chunks
    ]
    return assembled(item.dtype, item.shape, parts)


def _chunk(folder: Path, item: TensorItem, chunk: Chunk) -> torch.Tensor:
    assert chunk.place is not None
    with opened(source(folder, chunk.place)) as saved:
        return saved.tensor(chunk_stub(saved, item, chunk))


def _told(folder: Path, name: str, read: Callable[[], torch.Tensor]) -> torch.Tensor:
    try:
        return read()
    except DamagedItem as error:
        what = str(error)
    except (RuntimeError, MemoryError) as error:  # of torch: a dtype that it makes no tensors of
        what = f"no such tensor can be made here ({type(error).__name__})"
    raise CheckpointUnreadable(
        f"{name} cannot be read: {what}", where=str(folder), next_step=NEXT_STEP
    )
