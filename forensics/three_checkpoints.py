"""What three checkpoints in a row say of where the middle one went wrong.

Two signatures. Of the intervals: a damaged file differs in few tensors from what its predecessor
leads to, and its successor was not made from it; state that went wrong within the run is in the
successor, too. This needs checkpoints that should be equal, as those of replays are. And of single
elements, for checkpoints of a training that moves: one that jumps and returns is a damaged file,
one that jumps and stays went wrong within the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from .aliases import same_names
from .content import Content
from .same_bits import same_bits

FEW: Final = 0.1  # of the tensors, at most: a fault and no training step
# An element jumps if it moves this many times as far as the tensor's elements do as a rule: far
# beyond any update, and what a flip of the exponent's highest bit does to a weight below 2.
JUMP: Final = 1e3
RETURN: Final = 0.1  # of a jump: so near to its old place, or to its new one, an element is there
_PIECE: Final = 1 << 20  # elements at a time

FILE_BAD: Final = "the middle file is damaged: what came after it was not made from it"
WITHIN_THE_RUN: Final = "the state went wrong within the run: the checkpoint after it has it, too"
NOTHING: Final = "nothing that tells a damaged file from a training that goes on"


@dataclass(frozen=True)
class Jumps:
    """Elements of one tensor that moved by far more than the others.

    Attributes:
        returned: those that are back, or nearly, in the third checkpoint.
        stayed: those that are where they jumped to.
        first: index of the first of them, counted row by row.
    """

    returned: int
    stayed: int
    first: int


@dataclass(frozen=True)
class ThreeWay:
    """What three checkpoints say.

    Attributes:
        shares: of the tensors of both that differ, between A and B, B and C, A and C.
        jumps: by tensor.
        meaning: in words.
    """

    shares: tuple[float, float, float]
    jumps: Mapping[str, Jumps]
    meaning: str

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        names = ("a_b", "b_c", "a_c")
        return {
            "differing": dict(zip(names, self.shares, strict=True)),
            "jumps": {
                name: {"returned": one.returned, "stayed": one.stayed, "first": one.first}
                for name, one in self.jumps.items()
            },
            "meaning": self.meaning,
        }


def three_way(a: Content, b: Content, c: Content) -> ThreeWay:
    """Compare three checkpoints, of which the middle one is in question.

    Raises:
        CheckpointUnreadable: a tensor cannot be read.
    """
    a, b = same_names(a, b)
    b, c = same_names(b, c)
    names = [name for name in b.tensors if name in a.tensors and name in c.tensors]
    differing = [0, 0, 0]
    jumps = {}
    for name in names:
        one, two, three = (content.tensors[name].read() for content in (a, b, c))
        pairs = ((one, two), (two, three), (one, three))
        for place, pair in enumerate(pairs):
            differing[place] += not same_bits(*pair)
        if (found := jumps_of(one, two, three)) is not None:
            jumps[name] = found
    whole = max(1, len(names))
    shares = (differing[0] / whole, differing[1] / whole, differing[2] / whole)
    return ThreeWay(shares, jumps, meaning(shares, jumps.values()))


def meaning(shares: tuple[float, float, float], jumps: Iterable[Jumps]) -> str:
    """What the shares of differing tensors and the jumps say together.

    Args:
        shares: between A and B, B and C, A and C.
        jumps: of all tensors.
    """
    first, second, whole = shares
    if first and second and not whole:
        return FILE_BAD
    if 0 < first <= FEW and not second:
        return WITHIN_THE_RUN
    found = list(jumps)
    returned, stayed = sum(one.returned for one in found), sum(one.stayed for one in found)
    if returned > stayed:
        return FILE_BAD
    return WITHIN_THE_RUN if stayed else NOTHING


def jumps_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Jumps | None:
    """Elements that moved by far more than the others; None if none did.

    Args:
        a, b, c: the same tensor in the three checkpoints.
    """
    if not (a.dtype.is_floating_point and a.dtype == b.dtype == c.dtype):
        return None
    if not a.shape == b.shape == c.shape or a.numel() < 2:
        return None
    flat = [tensor.reshape(-1) for tensor in (a, b, c)]
    usual = _usual_move(flat)
    if not usual:
        return None
    returned = stayed = 0
    first: int | None = None
    for start in range(0, a.numel(), _PIECE):
        x, y, z = (tensor[start : start + _PIECE].double() for tensor in flat)
        jump = _distance(x, y)
        far = jump > JUMP * usual
        if not far.any():
            continue
        first = start + int(far.to(torch.uint8).argmax()) if first is None else first
        returned += int((far & _is_near(_distance(x, z), jump)).sum())
        stayed += int((far & _is_near(_distance(y, z), jump)).sum())
    return None if first is None else Jumps(returned, stayed, first)


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
