"""Statistics of many layers, and of several ranks: what is out of its limits, and what is kept.

What is out of its limits is not admitted to the past that it was judged by. A stream that was out
in `double_centred.LASTING` steps of its window begins anew: a shift that stands is one incident,
and then the level of that stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from .double_centred import MAD_TO_SIGMA, RENEWAL, Bools, DoubleCentred, Floats, Scored
from .medians import middles
from .peaks import PeakThreshold, Tail
from .seen_range import SeenRange

LOWEST: Final = 5.0  # σ; what is nearer is not worth telling, be it ever so rare
_VALUES: Final = 1 << 14  # judged together: bounds the memory that is taken for a moment
_SEPARATE: Final = 25  # steps without an alarm between two that count as separate for the tail


@dataclass(frozen=True)
class Kind:
    """One statistic.

    Attributes:
        name: of it.
        floor: s₀ of `double_centred`, in the unit of the statistic.
        tail: calibrated, of the |score| of a single stream.
        ranged: if given, a stream's value is no alarm where the stream has been before, however
            seldom, nor beyond that by so many times of how far it has moved so far. For what moves
            between a few levels (the rows of an embedding that a short batch leaves out, an expert
            without tokens), and stays at most steps at one of them; with ½, a new most by one row
            is no surprise.
        upwards: whether only what is above its past is out of its limits.
    """

    name: str
    floor: float
    tail: Tail
    ranged: float | None = None
    upwards: bool = False


@dataclass(frozen=True)
class Judged:
    """Some steps judged, (steps, kinds, ranks, layers).

    Attributes:
        residual: float64, see `double_centred`.
        score: float64, signed, NaN where nothing was judged.
        over: |score| above the threshold; None where nothing is.
        detrended: see `double_centred.Scored`.
    """

    residual: Floats
    score: Floats
    over: Bools | None
    detrended: Floats | None


class LayerWatch:
    """Scores, thresholds and the past of some statistics.

    Args:
        kinds: of statistics.
        layers: how many.
        ranks: how many are compared with each other; 1 for a process alone.
        budget: probability with which a healthy step may raise an alarm by one of the kinds; None
            for never.
        trends: whether `Judged.detrended` is wanted.
        low_floors: float64 (layers,), added to the spread where the first kind is below its level:
            see `step_signals.low_floors`. None for none.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        layers: int,
        *,
        ranks: int = 1,
        budget: float | None,
        trends: bool = False,
        low_floors: Floats | None = None,
    ) -> None:
        self.past = DoubleCentred(
            layers, ranks=ranks, floors=[kind.floor for kind in kinds], trends=trends
        )
        self.thresholds = [
            PeakThreshold(budget, kind.tail.of_the_largest(ranks * layers), LOWEST)
            for kind in kinds
        ]
        self._upwards = [place for place, kind in enumerate(kinds) if kind.upwards]
        self._wide = np.flatnonzero(low_floors > 0.0) if low_floors is not None else None
        if self._wide is not None and low_floors is not None:
            self._low_floors = low_floors[self._wide]
        self._limits = self._values()
        self._ranges = {
            place: SeenRange((ranks, layers), beyond=kind.ranged)
            for place, kind in enumerate(kinds)
            if kind.ranged is not None
        }
        self._most = max(1, _VALUES // (len(kinds) * ranks * layers or 1))
        self._steps = 0
        self._alarmed = np.full(len(kinds), -_SEPARATE)  # step of the newest alarm

    @property
    def at_once(self) -> int:
        """Steps that may be judged together; at least 1."""
        return min(self.past.until_renewal, self._most)

    def judge(self, x: Floats, excused: Bools | None = None) -> Judged:
        """Judge some steps; nothing is changed.

        Args:
            x: float64 (steps, kinds, ranks, layers), no more steps than `at_once`; NaN for what is
                not to be judged.
            excused: what is taken in and is no alarm, whatever its value, bool like `x`.
        """
        scored = self.past.score(x)
        scored = self._widened(scored)
        z = scored.z
        over = self._over(z)
        if excused is not None:
            z, over = np.where(excused, np.nan, z), over & ~excused
        if self._ranges and over.any():
            z = z.copy()
            for kind, seen in self._ranges.items():
                known = over[:, kind] & seen.holds(scored.residual[:, kind])
                over[:, kind] &= ~known
                z[:, kind][known] = np.nan
        return Judged(scored.residual, z, over if over.any() else None, scored.detrended)

    def _over(self, z: Floats) -> Bools:
        over: Bools = np.abs(z) > self._limits
        for kind in self._upwards:
            over[:, kind] &= z[:, kind] > 0
        return over

    def _widened(self, scored: Scored) -> Scored:
        """The same with the low floors."""
        if self._wide is None or not self._wide.size:
            return scored
        spread = self.past.spread[0][:, self._wide]
        less = spread / (spread + self._low_floors)
        for z in (scored.z[:, 0], scored.detrended):
            if z is not None:
                some = z[..., self._wide]
                z[..., self._wide] = np.where(some < 0, some * less, some)
        return scored

    def forget(self, kind: int) -> None:
        """Begin anew with a kind: what comes is not comparable with its past."""
        self.past.forget(kind)

    def judge_beside(self, judged: Judged, odd: Bools) -> Judged:
        """The same for steps that are odd as a whole, as with a garbage batch.

        All layers answer to that, each a bit differently: scores are divided by their spread over
        the layers, where that is more than the usual 1.

        Args:
            judged: some steps.
            odd: which of them, bool (steps,).
        """
        z = judged.score
        apart = np.abs(z - middles(z))
        spread = np.fmax(1.0, MAD_TO_SIGMA * middles(apart))
        score = np.where(odd[:, None, None, None], z / spread, z)
        over = self._over(score)
        return replace(judged, score=score, over=over if over.any() else None)

    @staticmethod
    def without(judged: Judged, kind: int, steps: Bools) -> Judged:
        """The same without one kind in some steps, bool (steps,): neither told nor admitted."""
        residual, score = judged.residual.copy(), judged.score.copy()
        residual[steps, kind], score[steps, kind] = np.nan, np.nan
        over = None if judged.over is None else judged.over & ~np.isnan(score)
        return replace(
            judged,
            residual=residual,
            score=score,
            over=over if over is not None and over.any() else None,
        )

    def admit(self, judged: Judged) -> Bools | None:
        """Take in steps that were judged.

        Returns:
            Streams that begin anew, bool (kinds, ranks, layers); None for none.
        """
        anew = self.past.admit(judged.residual, None if judged.over is None else ~judged.over)
        within: dict[int, Bools] = {}
        for kind, seen in self._ranges.items():
            over_kind = None if judged.over is None else judged.over[:, kind]
            known = seen.held_and_taken(judged.residual[:, kind], over_kind)
            if seen.beyond > 0:
                within[kind] = known
        scores = np.abs(judged.score)
        for kind, known in within.items():  # a count's steps have no tail that could be fitted
            scores[:, kind][known] = np.nan
        for kind in self._upwards:
            scores[:, kind] = np.maximum(judged.score[:, kind], 0.0)  # NaN stays
        scores = scores.reshape(*judged.score.shape[:2], -1)
        peaks = np.fmax.reduce(scores, axis=2, initial=np.nan)
        if judged.over is not None:
            over: Bools = np.logical_or.reduce(judged.over, axis=(2, 3))
            peaks = self._separate(peaks, over)
        self._steps += len(peaks)
        for threshold, of_kind in zip(self.thresholds, peaks.T, strict=True):
            threshold.take(of_kind)
        if self._steps % RENEWAL == 0:
            renewed = [threshold.renew() for threshold in self.thresholds]
            self._limits = self._values() if any(renewed) else self._limits
        return anew

    def _separate(self, peaks: Floats, over: Bools) -> Floats:
        """Peaks of the steps, NaN for an alarm that goes on; (steps, kinds)."""
        peaks = peaks.copy()
        for place, kind in np.argwhere(over):
            step = self._steps + int(place)
            if step - self._alarmed[kind] < _SEPARATE:
                peaks[place, kind] = np.nan
            self._alarmed[kind] = step
        return peaks

    def _values(self) -> Floats:
        return np.array([threshold.value for threshold in self.thresholds])[:, None, None]

    def remember(self, steps: int) -> tuple[Any, ...]:
        """What `go_back` needs to undo as many steps without an alarm."""
        thresholds = [threshold.remember(steps) for threshold in self.thresholds]
        ranges = [seen.remember() for seen in self._ranges.values()]
        return self.past.remember(steps), thresholds, ranges, self._limits, self._steps

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Undo what was admitted since; there was no alarm in it."""
        past, thresholds, ranges, self._limits, self._steps = remembered
        for seen, of_range in zip(self._ranges.values(), ranges, strict=True):
            seen.go_back(of_range)
        self.past.go_back(past)
        for threshold, of_threshold in zip(self.thresholds, thresholds, strict=True):
            threshold.go_back(of_threshold)
