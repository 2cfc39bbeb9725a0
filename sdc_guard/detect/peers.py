"""Ranks beside each other: whose gradient of which layer is unlike the others'.

Each statistic of `step_signals` is judged by `layer_watch` over (ranks, layers): what all ranks
share is taken out, and what all layers of a rank share; what is left is compared with the stream's
own past. So shards of one tensor are comparable as well, though their sizes are not.

What all layers of one rank share is judged by itself, as the median over its layers of how far
they are from the other ranks: a batch of garbage, a loss of its own. Where that stands out, or
many layers do at once, no single layer of that rank is accused at that step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from . import tails
from .double_centred import Bools, Floats, median_of_finite
from .layer_watch import Judged, LayerWatch
from .peaks import Tail
from .peer_findings import STATISTICS, Found, Kind, PeerFinding
from .shift_watch import ShiftWatch

MEASURES: Final = 3  # log norm, log max|g|/norm, log-odds of zeros: see `step_signals`
MANY: Final = 0.25  # of a rank's layers: so many at once are not single ones
FEWEST_MANY: Final = 3
# Of a single stream's |score|; a run's own tails take their place within its first few hundred
# compared steps. Calibrated with benchmarks/calibrate_peers.py on the seeds 100 to 102.
TAILS: Final[dict[Kind, Tail]] = {
    "norm": Tail(level=3.0, share=0.01, scale=0.75, shape=0.1),
    "peak": Tail(level=2.7, share=0.01, scale=0.55, shape=0.1),
    "zeros": Tail(level=2.0, share=0.01, scale=1.0, shape=0.1),
    "shift": Tail(level=6.0, share=0.01, scale=1.75, shape=0.15),
    "rank": Tail(level=3.9, share=0.01, scale=1.45, shape=0.1),
}


class PeerJudge:
    """Judges steps of all ranks, in their order.

    Args:
        ranks: how many.
        layers: how many.
        budget: false incidents per step, of all statistics together; None to find nothing.
    """

    def __init__(self, ranks: int, layers: int, budget: float | None) -> None:
        share = None if budget is None else budget / len(STATISTICS)
        floors: dict[Kind, float] = {
            "norm": tails.NORM_FLOOR,
            "peak": tails.PEAK_FLOOR,
            "zeros": tails.ZEROS_FLOOR,
        }
        self._layers = {
            kind: LayerWatch(layers, ranks=ranks, floor=floor, tail=TAILS[kind], budget=share)
            for kind, floor in floors.items()
        }
        self._shift = ShiftWatch(layers, ranks=ranks, tail=TAILS["shift"], budget=share)
        self._rank = LayerWatch(
            1, ranks=ranks, floor=tails.NORM_FLOOR, tail=TAILS["rank"], budget=share
        )

    @property
    def thresholds(self) -> dict[Kind, float]:
        """What |score| of each statistic is compared with now; inf for never."""
        found: dict[Kind, float] = {k: watch.threshold.value for k, watch in self._layers.items()}
        return {**found, "shift": self._shift.threshold.value, "rank": self._rank.threshold.value}

    def judge(self, steps: Sequence[int], values: Floats) -> list[PeerFinding]:
        """Judge some steps, and take them in.

        Args:
            steps: their numbers, rising.
            values: MEASURES, float64 (steps, ranks, layers, MEASURES); NaN for what is missing.

        Returns:
            One finding for each stream and statistic, those of whole ranks first.
        """
        found = Found()
        first = 0
        while first < len(steps):
            last = min(first + self._rank.at_once, len(steps))
            self._judge(steps[first:last], values[first:last], found)
            first = last
        return found.merged()

    def _judge(self, steps: Sequence[int], values: Floats, found: Found) -> None:
        norms, limits = values[..., 0], self.thresholds
        present = np.isfinite(norms)
        apart = norms - median_of_finite(norms, axis=1)
        rank = self._rank.judge(median_of_finite(apart, axis=2))
        judged: dict[Kind, Judged] = {
            kind: watch.judge(values[..., place])
            for place, (kind, watch) in enumerate(self._layers.items())
        }
        whole = rank.over | _many(judged.values(), present)
        here: Bools = np.logical_or.reduce(present, axis=2, keepdims=True)
        found.add(steps, "rank", whole, rank.score, here, limits["rank"])
        left_out = np.broadcast_to(whole, present.shape) if whole.any() else None
        if left_out is not None:
            judged = {kind: _without(one, left_out) for kind, one in judged.items()}
        for kind, one in judged.items():
            found.add(steps, kind, one.over, one.score, present, limits[kind])
        norm = judged["norm"]
        shift = self._shift.judge(np.where(norm.over, np.nan, norm.score))
        found.add(steps, "shift", shift.over, shift.score, present, limits["shift"])
        anew = {k: watch.admit(judged[k], left_out) for k, watch in self._layers.items()}
        self._shift.admit(shift, anew["norm"])
        self._rank.admit(rank, whole)


def _many(judged: Iterable[Judged], present: Bools) -> Bools:
    """Ranks of which many layers are out of their limits, shape (steps, ranks, 1)."""
    out = np.logical_or.reduce([one.over for one in judged])
    most = np.maximum(FEWEST_MANY, MANY * present.sum(axis=2, keepdims=True))
    many: Bools = out.sum(axis=2, keepdims=True) >= most
    return many


def _without(judged: Judged, left_out: Bools) -> Judged:
    score = np.where(left_out, np.nan, judged.score)
    return Judged(judged.residual, score, judged.over & ~left_out)
