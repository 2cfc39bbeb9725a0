"""Ranks beside each other: whose gradient of which layer is unlike the others'.

Each statistic of `step_signals` is judged by `layer_watch` over (ranks, layers): what all ranks
share is taken out, and what all layers of a rank share; what is left is compared with the stream's
own past. So shards of one tensor are comparable as well, though their sizes are not.

What all layers of one rank share is judged by itself, as the median over its layers of how far
they are from the other ranks: a batch of garbage, a loss of its own. Where that stands out, or
many layers do at once, no single layer of that rank is accused at that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from . import tails
from .double_centred import Bools, Floats
from .layer_watch import Judged, Kind, LayerWatch
from .medians import middles
from .peaks import Tail
from .peer_findings import STATISTICS, Found, PeerFinding, Statistic
from .shift_watch import ShiftWatch

MANY: Final = 0.25  # of a rank's layers: so many at once are not single ones
FEWEST_MANY: Final = 3
NEARLY: Final = 3.0  # σ; what is so far off counts as one of many beside another that is out
# Tails of a single stream's |score|; a run's own take their place within its first few hundred
# compared steps. Calibrated with benchmarks/calibrate_peers.py on the seeds 100 to 102.
KINDS: Final = (
    replace(tails.NORM, tail=Tail(level=3.0, share=0.01, scale=0.75, shape=0.1)),
    # a mean over more examples has a smaller peak: ranks whose batches differ in size move it
    replace(tails.PEAK, floor=0.15, tail=Tail(level=2.7, share=0.01, scale=0.55, shape=0.1)),
    replace(tails.ZEROS, tail=Tail(level=0.8, share=0.01, scale=0.4, shape=0.1)),
)
RANK: Final = Kind("rank", tails.TOTAL.floor, Tail(level=4.0, share=0.01, scale=1.2, shape=0.15))
SHIFT: Final = Tail(level=5.5, share=0.01, scale=1.6, shape=0.1)


class PeerJudge:
    """Judges steps of all ranks, in their order.

    Args:
        ranks: how many.
        layers: how many.
        budget: false incidents per step, of all statistics together; None to find nothing.
    """

    def __init__(self, ranks: int, layers: int, budget: float | None) -> None:
        share = None if budget is None else budget / len(STATISTICS)
        self._layers = LayerWatch(KINDS, layers, ranks=ranks, budget=share, trends=True)
        self._rank = LayerWatch([RANK], 1, ranks=ranks, budget=share)
        self._shift = ShiftWatch(layers, ranks=ranks, tail=SHIFT, budget=share)

    @property
    def thresholds(self) -> dict[Statistic, float]:
        """What |score| of each statistic is compared with now; inf for never."""
        found = [*self._layers.thresholds, self._shift.threshold, *self._rank.thresholds]
        return {name: held.value for name, held in zip(STATISTICS, found, strict=True)}

    def judge(self, steps: Sequence[int], values: Floats) -> list[PeerFinding]:
        """Judge some steps, and take them in.

        Args:
            steps: their numbers, rising.
            values: what `step_signals.layer_statistics` gives of each rank, float64
                (steps, 3, ranks, layers); NaN for what is missing.

        Returns:
            One finding for each stream and statistic, those of whole ranks first.
        """
        found = Found()
        first = 0
        while first < len(steps):
            last = min(first + self._layers.at_once, len(steps))
            with np.errstate(invalid="ignore"):
                self._judge(steps[first:last], values[first:last], found)
            first = last
        return found.merged()

    def _judge(self, steps: Sequence[int], values: Floats, found: Found) -> None:
        norms, limits = values[:, 0], self.thresholds
        present = np.isfinite(norms)
        rank = self._rank.judge(_of_ranks(norms)[:, None])
        layers = self._layers.judge(values)
        whole = _whole(rank, layers, present)
        if whole is not None:
            here: Bools = np.logical_or.reduce(present, axis=2, keepdims=True)
            found.add(steps, "rank", whole, rank.score[:, 0], here, limits["rank"])
            rank = Judged(rank.residual, rank.score, whole[:, None], None)
            layers = _without(layers, np.broadcast_to(whole, present.shape))
        z = layers.detrended
        assert z is not None  # asked for
        if layers.over is not None:
            told = layers.over & np.isfinite(layers.score)
            for place, kind in enumerate(STATISTICS[: len(KINDS)]):
                score = layers.score[:, place]
                found.add(steps, kind, told[:, place], score, present, limits[kind])
            z = np.where(layers.over[:, 0], np.nan, z)
        shift = self._shift.judge(z)
        if shift.over is not None:
            found.add(steps, "shift", shift.over, shift.score, present, limits["shift"])
        anew = self._layers.admit(layers)
        self._shift.admit(shift, None if anew is None else anew[0])
        self._rank.admit(rank)


def _of_ranks(norms: Floats) -> Floats:
    """How far all layers of a rank are from the other ranks' together, (steps, ranks, 1)."""
    apart = norms - np.swapaxes(middles(np.swapaxes(norms, 1, 2)), 1, 2)
    return middles(apart)


def _whole(rank: Judged, layers: Judged, present: Bools) -> Bools | None:
    """Ranks that are out of their limits, or many of whose layers are; (steps, ranks, 1)."""
    found = None if rank.over is None else rank.over[:, 0]
    if layers.over is not None:
        out = np.logical_or.reduce(layers.over, axis=1).any(axis=2, keepdims=True)
        nearly = layers.over | (np.abs(layers.score) > NEARLY)
        count = np.logical_or.reduce(nearly, axis=1).sum(axis=2, keepdims=True)
        most = np.maximum(FEWEST_MANY, MANY * present.sum(axis=2, keepdims=True))
        many: Bools = out & (count >= most)
        found = many if found is None else found | many
    return found if found is not None and found.any() else None


def _without(judged: Judged, whole: Bools) -> Judged:
    """The same without scores of the layers of whole ranks, which are not admitted either."""
    score = np.where(whole[:, None], np.nan, judged.score)
    over = np.broadcast_to(whole[:, None], judged.score.shape)
    if judged.over is not None:
        over = judged.over | over
    detrended = None if judged.detrended is None else np.where(whole, np.nan, judged.detrended)
    return Judged(judged.residual, score, over, detrended)
