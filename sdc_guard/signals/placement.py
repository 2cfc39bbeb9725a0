"""Which part of a whole tensor a rank holds, and how many ranks hold the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..digest import Patch, Patches, Place, Span
from ..digest.span import runs_of
from .cuts import Cut, held, nested


@dataclass(frozen=True)
class Placement:
    """How this rank's tensor stands to the whole one.

    Attributes:
        scope: "local" for a plain tensor, "sharded" for a shard, "replicated" for a distributed
            tensor that every rank of its mesh holds whole, "partial" for one whose ranks hold
            terms of a sum that nobody has added.
        copies: number of ranks that hold these very elements.
        offset: index of the shard's first element in the whole tensor; the place of a shard that
            is not one run of consecutive elements; or None where that is unknown.
    """

    scope: str = "local"
    copies: int = 1
    offset: Place | None = 0


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


def _offset(tensor: torch.Tensor, places: Any, mesh: Any) -> Place | None:
    """Where this rank's part is; None where its shape is not what its placements say."""
    part = local(tensor)
    coordinate: Any = mesh.get_coordinate()
    if not part.numel() or coordinate is None:
        return 0
    below = math.prod(tensor.shape)
    along: list[list[Span]] = []
    for dimension, size in enumerate(tensor.shape):
        cuts = [
            Cut(mesh.size(number), coordinate[number], getattr(place, "split_factor", 1))
            for number, place in enumerate(places)
            if not place.is_replicate() and place.dim == dimension
        ]
        runs = held(size, cuts, part.shape[dimension])
        if runs is None:
            return None
        below //= size
        along.append([_of_elements(span, below) for span in nested(runs)])
    patches = [_patch(spans) for spans in itertools.product(*_placed(along))]
    if len(patches) > 1:
        return Patches(tuple(patches))
    span = runs_of(patches[0].span, part.numel())
    return span.first if span.strides == (1,) else span


def _of_elements(span: Span, below: int) -> Span:
    """A span along a dimension as one of the tensor's elements; `below`: those of an index."""
    return Span(span.first * below, span.sizes, tuple(x * below for x in span.strides))


def _placed(along: list[list[Span]]) -> list[list[tuple[int, int, Span]]]:
    """For each dimension (start, length, span), the first two of indices in this rank's part."""
    found = []
    for spans in along:
        lengths = [math.prod(span.sizes) for span in spans]
        starts = itertools.accumulate(lengths[:-1], initial=0)
        found.append(list(zip(starts, lengths, spans, strict=True)))
    return found


def _patch(placed: Sequence[tuple[int, int, Span]]) -> Patch:
    spans = [span for _, _, span in placed]
    return Patch(
        tuple(start for start, _, _ in placed),
        tuple(length for _, length, _ in placed),
        Span(
            sum(span.first for span in spans),
            tuple(size for span in spans for size in span.sizes),
            tuple(stride for span in spans for stride in span.strides),
        ),
    )
