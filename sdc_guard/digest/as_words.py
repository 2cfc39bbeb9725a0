"""A tensor as words that lie one after the other, and which of the whole tensor they are."""

from __future__ import annotations

import torch

from .reference import is_plain, words
from .span import Span, runs_of


def as_words(tensor: torch.Tensor, place: int | Span) -> tuple[torch.Tensor, Span]:
    """A tensor to read from its address on, with no copy of it if one can be done without.

    The order in which elements are taken does not show in a digest. So a transposed matrix, or an
    image whose channels come last, is taken in the order of its memory.

    Args:
        place: of the tensor in the whole one.

    Returns:
        a tensor whose memory is the words, and their place as `runs_of` makes it.
    """
    count = tensor.numel()
    if is_plain(tensor):
        return tensor, runs_of(place, count)
    if isinstance(place, int) and not (tensor.is_complex() or tensor.is_neg()):
        span = _in_order_of_memory(tensor, place)
        if span is not None:
            return tensor, runs_of(span, count)
    return words(tensor), runs_of(place, count, 2 if tensor.is_complex() else 1)


def _in_order_of_memory(tensor: torch.Tensor, first: int) -> Span | None:
    """The place of a tensor's memory; None if its elements leave gaps or share memory."""
    steps, below = [], 1
    for size in reversed(tensor.shape):
        steps.append(below)
        below *= size
    levels = sorted(zip(tensor.stride(), tensor.shape, reversed(steps), strict=True), reverse=True)
    levels = [level for level in levels if level[1] > 1]
    filled = 1
    for stride, size, _ in reversed(levels):
        if stride != filled:
            return None
        filled *= size
    return Span(first, tuple(size for _, size, _ in levels), tuple(step for *_, step in levels))
