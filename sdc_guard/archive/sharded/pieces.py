"""The pieces of a checkpoint that one rank holds: boxes of tensors, and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ...detect.carried import Key
from ...detect.counters import KIND as COUNTER
from ...digest import Digest, Place, Span, digest_tensor
from ...digest.span import runs_of
from ...errors import UsageError
from ...signals.placement import local, placement
from ..manifest import TensorEntry
from ..torch_file import is_plain
from .flat import Path, flattened

At: TypeAlias = tuple[str, tuple[int, ...]]  # name of a tensor or value, and where the box begins


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, or a whole value.

    Attributes:
        name: of the tensor or value in the payload.
        dtype: of the tensor, as "float32"; "" for a value.
        shape: of the whole tensor.
        offsets, sizes: the box.
        entry: the digest that the box must have, at its place in the whole; None for a value, and
            for what has none by now.
        own: whether each rank may well have another one: a generator's state, a model's buffer.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    entry: TensorEntry | None = None
    own: bool = False

    @property
    def at(self) -> At:
        """What no other piece of the checkpoint has, copies on other ranks aside."""
        return self.name, self.offsets

    @property
    def is_value(self) -> bool:
        """Whether it is no tensor."""
        return not self.dtype

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the tensor."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def numel(self) -> int:
        """Elements of the box."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Of the box."""
        return 0 if self.is_value else self.numel * self.torch_dtype.itemsize

    @property
    def place(self) -> Place:
        """Where the box is in the whole tensor."""
        strides, below = [], 1
        for size in reversed(self.shape):
            strides.append(below)
            below *= size
        strides.reverse()
        if not self.numel or not self.shape:
            return 0
        first = sum(at * stride for at, stride in zip(self.offsets, strides, strict=True))
        span = runs_of(Span(first, self.sizes, tuple(strides)), self.numel)
        return span.first if span.strides == (1,) else span

    def digest_of(self, tensor: torch.Tensor) -> Digest:
        """The digest of a tensor as the content of this box."""
        return digest_tensor(tensor, offset=self.place)


@dataclass(frozen=True)
class Given:
    """What one rank gives to a checkpoint, not copied yet.

    Attributes:
        pieces: in the payload's order.
        tensors: this rank's part of each tensor, sharing the payload's memory.
        values: what is no tensor with memory of its own, by name.
        paths: by name, how to come to it in the payload.
        placements: by name, of the tensors that are distributed.
        doubts: why what will be saved is not all of it.
    """

    pieces: dict[At, Piece]
    tensors: dict[At, torch.Tensor]
    values: dict[str, Any]
    paths: dict[str, Path]
    placements: dict[str, str]
    doubts: list[str]


def given(payload: Mapping[str, Any], buffers: Collection[int] = ()) -> Given:
    """The pieces of a payload on this rank.

    Args:
        payload: nested.
        buffers: addresses of the model's.

    Raises:
        UsageError: two leaves would have one name.
    """
    leaves = flattened(payload)
    found = Given({}, {}, {}, {name: path for name, (path, _) in leaves.items()}, {}, [])
    for name, (_, leaf) in leaves.items():
        if not isinstance(leaf, torch.Tensor) or not is_plain(local(leaf)):
            found.values[name] = leaf
            found.pieces[name, ()] = Piece(name)
            continue
        if hasattr(leaf, "placements"):
            found.placements[name] = str(tuple(leaf.placements))
            if placement(leaf).scope == "partial":
                found.doubts.append(f"{name} is a sum that the ranks have not added up")
        for offsets, sizes, tensor in _boxes(leaf):
            dtype = str(tensor.dtype).removeprefix("torch.")
            own = tensor.dtype == torch.uint8 or tensor.data_ptr() in buffers
            piece = Piece(name, dtype, tuple(leaf.shape), offsets, sizes, own=own)
            found.pieces[piece.at], found.tensors[piece.at] = piece, tensor.detach()
    return found


def with_traced_digests(
    pieces: Mapping[At, Piece],
    tensors: Mapping[At, torch.Tensor],
    state: Mapping[Key, torch.Tensor],
    recorded: Mapping[Key, Digest],
    layer_names: Mapping[int, str],
) -> dict[At, Piece]:
    """The pieces, those that share memory with traced state with the digest that was recorded."""
    at = {(t.data_ptr(), t.numel()): key for key, t in state.items() if t.numel()}
    found = {}
    for place, piece in pieces.items():
        tensor = tensors.get(place)
        key = None if tensor is None else at.get((tensor.data_ptr(), tensor.numel()))
        if key is not None and key in recorded:
            named = (None, None) if key[0] == COUNTER else (key[0], layer_names[key[1]])
            piece = replace(piece, entry=TensorEntry.of(recorded[key], *named))
        found[place] = piece
    return found


def _boxes(
    leaf: torch.Tensor,
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor]]:
    """(offsets, sizes, content) of the boxes that this rank holds."""
    shape = tuple(leaf.shape)
    if not hasattr(leaf, "placements"):
        yield (0,) * len(shape), shape, leaf
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = getattr(leaf, "device_mesh")  # noqa: B009 - because a plain tensor has none
    if mesh.get_coordinate() is None:  # this rank is not among those that hold it
        return
    sizes, offsets = compute_local_shape_and_global_offset(leaf.shape, mesh, leaf.placements)
    part = local(leaf)
    if tuple(part.shape) != tuple(sizes):
        raise UsageError(
            f"a shard has the shape {list(part.shape)}, and by its placements {list(sizes)}"
        )
    if part.numel() or not leaf.numel():  # an empty shard of a tensor that is not has no place
        yield tuple(offsets), tuple(sizes), part
