"""Which part of a whole tensor a rank holds, and how many ranks hold the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..digest import Span


@dataclass(frozen=True)
class Placement:
    """How this rank's tensor stands to the whole one.

    Attributes:
        scope: "local" for a plain tensor, "sharded" for a shard, "replicated" for a distributed
            tensor that every rank of its mesh holds whole, "partial" for one whose ranks hold
            terms of a sum that nobody has added.
        copies: number of ranks that hold these very elements.
        offset: index of the shard's first element in the whole tensor; the span of a shard that
            is not one run of consecutive elements; or None where it is neither.
    """

    scope: str = "local"
    copies: int = 1
    offset: int | Span | None = 0


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor, without a collective; a plain tensor as it is."""
    inner: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    wait: Any = getattr(inner, "wait", None)  # a collective's result that is still on its way
    return inner if wait is None else wait()


def placement(tensor: torch.Tensor) -> Placement:
    """The placement of a parameter, a gradient or an optimizer's moment."""
    placements: Any = getattr(tensor, "placements", None)
    if placements is None:
        return Placement()
    mesh: Any = getattr(tensor, "device_mesh")  # noqa: B009 - because a plain tensor has none
    sizes = [mesh.size(dimension) for dimension in range(mesh.ndim)]
    copies = 1
    for size, place in zip(sizes, placements, strict=True):
        copies *= size if place.is_replicate() else 1
    if any(place.is_partial() for place in placements):
        return Placement("partial", copies, None)
    if all(place.is_replicate() for place in placements):
        return Placement("replicated", copies)
    return Placement("sharded", copies, _offset(tensor, placements, mesh))


def mesh_size(tensor: torch.Tensor) -> int:
    """Ranks over which a tensor is distributed; 0 for a plain one."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return 0 if mesh is None else int(mesh.size())


def of_gradient(own: Placement, gradient: torch.Tensor) -> Placement:
    """The placement of a gradient: its parameter's `own`, unless its ranks' terms are not added.

    So it is for a parameter that every rank of its mesh holds whole, and that each applies to its
    own part of the activations (sequence parallelism).
    """
    places: Any = getattr(gradient, "placements", None)
    if places is None or not any(place.is_partial() for place in places):
        return own
    return placement(gradient)


def _offset(tensor: torch.Tensor, places: Any, mesh: Any) -> int | Span | None:
    """Where this rank's part is, if it is cut along the first dimension and one other at most."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    cut = {place.dim for place in places if not place.is_replicate()}
    inner = max(cut)
    part = local(tensor)
    if not part.numel():
        return 0
    if len(cut - {0}) > 1 or not all(
        _in_order(number, places, mesh) for number in range(mesh.ndim)
    ):
        return None
    _, starts = compute_local_shape_and_global_offset(tensor.shape, mesh, places)
    stride = math.prod(tensor.shape[inner:])
    below = math.prod(tensor.shape[inner + 1 :])
    first = int(starts[inner]) * below
    if inner == 0:
        return first
    first += int(starts[0]) * math.prod(tensor.shape[1:])
    return Span(first, part.shape[inner] * below, stride)


def _in_order(number: int, places: Any, mesh: Any) -> bool:
    """Whether a cut leaves consecutive rows: fully_shard's of what tensor parallelism has cut is
    recorded before that one but done after it."""
    factor = getattr(places[number], "split_factor", None)
    if factor is None:
        return True
    later = [
        mesh.size(other)
        for other in range(number + 1, mesh.ndim)
        if not places[other].is_replicate() and places[other].dim == places[number].dim
    ]
    return bool(factor == math.prod(later))
