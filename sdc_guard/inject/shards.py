"""From elements of a whole tensor to those of the part that a rank holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..digest.span import Patch, Place, Span
from ..errors import InjectionError
from ..signals.placement import local, placement


def positions(indices: NDArray[np.int64], shape: Sequence[int], place: Place) -> NDArray[np.int64]:
    """Where elements of the whole tensor lie in a part of it; −1 for those that do not.

    Args:
        indices: in the whole tensor, flattened row by row.
        shape: of the part.
        place: of the part in the whole tensor.
    """
    if isinstance(place, int):
        place = Span(place, (math.prod(shape),), (1,))
    if isinstance(place, Span):
        return _in_span(indices, place)
    found = np.full_like(indices, -1)
    for patch in place.patches:
        within = _in_span(indices, patch.span)
        found = np.where(within >= 0, _in_part(within, shape, patch), found)
    return found


def held_by_this_rank(
    indices: NDArray[np.int64], tensor: torch.Tensor, name: str = "the tensor"
) -> NDArray[np.int64]:
    """`positions` of elements of a distributed tensor in this rank's part; a plain one has all.

    Raises:
        InjectionError: the part's place is not known, or its ranks hold terms of a sum.
    """
    place = placement(tensor)
    if place.offset is None:
        why = "its ranks hold terms of a sum" if place.scope == "partial" else "it is cut unevenly"
        raise InjectionError(
            f"no element of {name} has a known place on this rank: {why}",
            next_step="inject into the local tensor",
        )
    return positions(indices, local(tensor).shape, place.offset)


def _in_span(indices: NDArray[np.int64], span: Span) -> NDArray[np.int64]:
    left, found = indices - span.first, np.zeros_like(indices)
    inside = np.ones(indices.shape, bool)
    for size, stride in zip(span.sizes, span.strides, strict=True):
        step = left // stride
        inside &= (step >= 0) & (step < size)
        left = left - step * stride
        found = found * size + step
    return np.where(inside & (left == 0), found, -1)


def _in_part(within: NDArray[np.int64], shape: Sequence[int], patch: Patch) -> NDArray[np.int64]:
    """From positions in a patch to positions in the part."""
    found, below = np.zeros_like(within), 1
    for size, start, length in zip(
        reversed(shape), reversed(patch.starts), reversed(patch.lengths), strict=True
    ):
        found += (within % length + start) * below
        within = within // length
        below *= size
    return found
