"""Which part of a whole tensor a rank holds, and how many ranks hold the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Placement:
    """How this rank's tensor stands to the whole one.

    Attributes:
        scope: "local" for a plain tensor, "sharded" for a shard, "replicated" for a distributed
            tensor that every rank of its mesh holds whole, "partial" for one whose ranks hold
            terms of a sum that nobody has added.
        copies: number of ranks that hold these very elements.
        offset: index of the shard's first element in the whole tensor, or None where the shard
            is not a run of consecutive elements.
    """

    scope: str = "local"
    copies: int = 1
    offset: int | None = 0


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
    if not any(place.is_shard() for place in placements):
        return Placement("replicated", copies)
    return Placement("sharded", copies, _offset(tensor, placements))


def _offset(tensor: torch.Tensor, placements: Any) -> int | None:
    # rows of the first dimension are consecutive; a shard along another one is not
    if any(
        type(place).__name__ != "Shard" or place.dim for place in placements if place.is_shard()
    ):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = getattr(tensor, "device_mesh")  # noqa: B009 - as above
    _, starts = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    row = 1
    for size in tensor.shape[1:]:
        row *= size
    return int(starts[0]) * row
