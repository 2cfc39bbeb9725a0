"""Where the elements of a part are in the whole tensor.

The elements of a part are taken row by row, in the order in which they lie in the part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch


class Span(NamedTuple):
    """The place of a part that is nested runs of the whole tensor.

    Element (d₀, d₁, …) of a part of shape `sizes` has the index first + Σ dₖ·strides[k].

    Attributes:
        first: index of the first element.
        sizes: of each level, the outermost first.
        strides: from one element of a level to the next one, in elements of the whole tensor. No
            run reaches into the next one of its level.
    """

    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def position(self, index: int) -> int | None:
        """The position in the part of an element of the whole tensor; None: it is elsewhere."""
        left, found = index - self.first, 0
        for size, stride in zip(self.sizes, self.strides, strict=True):
            step = left // stride
            if not 0 <= step < size:
                return None
            left -= step * stride
            found = found * size + step
        return found if left == 0 else None


class Patch(NamedTuple):
    """A block of a part: from `starts` on, `lengths` elements along each dimension, at `span`."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    span: Span


class Patches(NamedTuple):
    """The place of a part whose runs are of several lengths: that of each block of it.

    Attributes:
        patches: they cover the part, and do not overlap.
    """

    patches: tuple[Patch, ...]


# of a part: its first element's index, if the rest follows it in the whole tensor
Place: TypeAlias = int | Span | Patches


def pieces(tensor: torch.Tensor, place: Place) -> list[tuple[torch.Tensor, int | Span]]:
    """A part as tensors that each are one run or nested ones."""
    if not isinstance(place, Patches):
        return [(tensor, place)]
    return [(_block(tensor, patch), patch.span) for patch in place.patches]


def _block(tensor: torch.Tensor, patch: Patch) -> torch.Tensor:
    for dimension, (start, length) in enumerate(zip(patch.starts, patch.lengths, strict=True)):
        tensor = tensor.narrow(dimension, start, length)
    return tensor


def position(shape: Sequence[int], place: Place, index: int) -> int | None:
    """The position in a part of an element of the whole tensor; None: it is not in this part.

    Args:
        shape: of the part.
        index: of the element in the whole tensor.
    """
    if isinstance(place, int):
        found = index - place
        return found if 0 <= found < math.prod(shape) else None
    if isinstance(place, Span):
        return place.position(index)
    for starts, lengths, span in place.patches:
        within = span.position(index)
        if within is not None:
            return _in_whole_part(within, shape, starts, lengths)
    return None


def _in_whole_part(
    position: int, shape: Sequence[int], starts: Sequence[int], lengths: Sequence[int]
) -> int:
    digits = []
    for length in reversed(lengths):
        position, digit = divmod(position, length)
        digits.append(digit)
    found = 0
    for size, start, digit in zip(shape, starts, reversed(digits), strict=True):
        found = found * size + start + digit
    return found


@lru_cache(4096)
def runs_of(place: int | Span, count: int, words: int = 1) -> Span:
    """A place as few nested runs of words, at least one.

    Args:
        count: elements of the part.
        words: of an element, which follow each other: 2 for a complex one.
    """
    first, sizes, strides = (
        (place, (count,), (1,)) if isinstance(place, int) else (place.first, place[1], place[2])
    )
    levels: list[tuple[int, int]] = [(words, 1)]
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        inner, below = levels[-1]
        if stride * words == inner * below:
            levels[-1] = (size * inner, below)
        elif size != 1:
            levels.append((size, stride * words))
    if levels[0] == (1, 1) and len(levels) > 1:
        del levels[0]
    outward = levels[::-1]
    return Span(
        first * words, tuple(size for size, _ in outward), tuple(stride for _, stride in outward)
    )
