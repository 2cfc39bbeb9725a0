"""What was found of ranks beside each other, one finding for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from .double_centred import Bools, Floats

Statistic = Literal["norm", "peak", "zeros", "shift", "rank"]
STATISTICS: Final[tuple[Statistic, ...]] = ("norm", "peak", "zeros", "shift", "rank")


@dataclass(frozen=True)
class PeerFinding:
    """A stream that was out of its limits in some of the steps judged together.

    Attributes:
        step: the first of them.
        kind: which statistic; "rank" for all layers of a rank.
        rank: whose stream; None where one of two ranks differs from the other.
        ranks: those that were compared at that step.
        layer: its place among the layers; None for kind "rank".
        score: the one furthest from zero, signed, in robust σ ("shift": CUSUM, in σ). Of two ranks
            without its sign.
        threshold: what |score| was compared with.
        steps: in how many of the steps.
    """

    step: int
    kind: Statistic
    rank: int | None
    ranks: tuple[int, ...]
    layer: int | None
    score: float
    threshold: float
    steps: int


class Found:
    """Gathers findings of several blocks of steps."""

    def __init__(self) -> None:
        self._streams: dict[tuple[Statistic, int | None, int | None], list[PeerFinding]] = {}

    def add(
        self,
        steps: Sequence[int],
        kind: Statistic,
        over: Bools,
        score: Floats,
        present: Bools,
        threshold: float,
    ) -> None:
        """Take what is over in some steps.

        Args:
            steps: their numbers.
            over, score: shape (steps, ranks, layers); of kind "rank" (steps, ranks, 1).
            present: who gave a value, like them.
        """
        for place, rank, layer in zip(*np.nonzero(over), strict=True):
            ranks = np.flatnonzero(present[place, :, layer])
            value = float(score[place, rank, layer])
            which = None if kind == "rank" else int(layer)
            one = PeerFinding(
                step=steps[place],
                kind=kind,
                rank=int(rank) if len(ranks) > 2 else None,
                ranks=tuple(ranks.tolist()),
                layer=which,
                # a rank of which only the number of layers tells has no score of its own
                score=threshold if np.isnan(value) else value if len(ranks) > 2 else abs(value),
                threshold=threshold,
                steps=1,
            )
            self._streams.setdefault((kind, one.rank, which), []).append(one)

    def merged(self) -> list[PeerFinding]:
        """One for each stream, those of whole ranks first, then the largest score in thresholds."""
        found = [_merged(parts) for parts in self._streams.values()]
        return sorted(found, key=lambda one: (one.kind != "rank", -abs(one.score) / one.threshold))


def _merged(parts: list[PeerFinding]) -> PeerFinding:
    furthest = max(parts, key=lambda one: abs(one.score))
    steps = len({one.step for one in parts})  # both of two ranks are one stream
    return replace(parts[0], score=furthest.score, threshold=furthest.threshold, steps=steps)
