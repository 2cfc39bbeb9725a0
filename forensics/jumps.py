"""Elements of a tensor that jumped in the middle one of three checkpoints. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from sdc_guard.inject.formats import FORMATS

# An element jumps if it moves this many times as far as the tensor's elements do as a rule: far
# beyond any update, and what a flip of the exponent's highest bit does to a weight below 2.
JUMP: Final = 1e3
# A moment's elements span decades: it jumps only if it moves this many times as far as the largest.
BEYOND: Final = 1e2
RETURN: Final = 0.1  # of a jump: so near to its old place, or to its new one, an element is there
_PIECE: Final = 1 << 20  # elements at a time


@dataclass(frozen=True)
class Jumps:
    """Elements of one tensor that moved by far more than the others.

    Attributes:
        returned: those that are back, or nearly, in the third checkpoint.
        stayed: those that are where they jumped to.
        first: index of the first of them, counted row by row.
        values: of that element in A, B and C, as text for NaN's sake.
    """

    returned: int
    stayed: int
    first: int
    values: tuple[str, str, str] = ("", "", "")


def jumps_of(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, moment: bool = False
) -> Jumps | None:
    """Elements that moved by far more than the others and returned, or stayed; None if none did.

    Args:
        a, b, c: the same tensor in the three checkpoints.
        moment: whether it is no parameter: elements of moments span many decades, so that one has
            to jump beyond all that A holds, too.
    """
    word = FORMATS.get(a.dtype)
    if word is None or word.element is None or not a.dtype.is_floating_point:
        return None
    if not a.dtype == b.dtype == c.dtype:
        return None
    if not a.shape == b.shape == c.shape or a.numel() < 2:
        return None
    flat = [tensor.reshape(-1) for tensor in (a, b, c)]
    usual = _usual_move(flat)
    if not usual:
        return None
    least = JUMP * usual
    if moment:
        least = max(least, BEYOND * _largest(flat[0]))
    returned = stayed = 0
    first: int | None = None
    for start in range(0, a.numel(), _PIECE):
        x, y, z = (tensor[start : start + _PIECE].double() for tensor in flat)
        jump = _distance(x, y)
        far = jump > least
        if not far.any():
            continue
        back = far & _is_near(_distance(x, z), jump)
        there = far & ~back & _is_near(_distance(y, z), jump)
        returned += int(back.sum())
        stayed += int(there.sum())
        told = back | there  # what went on to somewhere else says nothing
        if first is None and told.any():
            first = start + int(told.to(torch.uint8).argmax())
    if first is None:
        return None
    values = (f"{tensor[first].double().item():.6g}" for tensor in flat)
    return Jumps(returned, stayed, first, (next(values), next(values), next(values)))


def _largest(flat: torch.Tensor) -> float:
    """Largest absolute value that is finite."""
    largest = 0.0
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].double().abs()
        largest = max(largest, float(piece.nan_to_num(nan=0.0, posinf=0.0).max()))
    return largest


def _is_near(distance: torch.Tensor, jump: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(distance) & (distance <= RETURN * jump)


def _usual_move(flat: list[torch.Tensor]) -> float:
    """Median of how far elements that move do so between two neighbours, of a sample."""
    step = max(1, flat[0].numel() // _PIECE)
    a, b, c = (tensor[::step].double() for tensor in flat)
    moves = torch.minimum(_distance(a, b), _distance(b, c))
    moves = moves[(moves > 0) & torch.isfinite(moves)]
    return float(moves.median()) if moves.numel() else 0.0


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Absolute differences; of what is not finite in one alone, infinite."""
    found = (one - other).abs()
    return torch.where(one == other, 0.0, found.nan_to_num(nan=torch.inf))
