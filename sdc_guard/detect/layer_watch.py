"""One statistic of many layers, and of several ranks: what is out of its limits, and what is kept.

What is out of its limits is not admitted to the past that it was judged by. A stream that stays
out begins anew after `double_centred.WINDOW` steps: a shift that stands is one incident, and then
the level of that stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .double_centred import RENEWAL, Bools, DoubleCentred, Floats
from .peaks import PeakThreshold, Tail

_SEPARATE: Final = 25  # steps without an alarm between two that count as separate for the tail


@dataclass(frozen=True)
class Judged:
    """Some steps judged.

    Attributes:
        residual: float64 (steps, ranks, layers), see `double_centred`.
        score: likewise; signed, NaN where nothing was judged.
        over: |score| above the threshold.
    """

    residual: Floats
    score: Floats
    over: Bools


class LayerWatch:
    """Scores, thresholds and the past of one statistic.

    Args:
        layers: how many.
        ranks: how many are compared with each other; 1 for a process alone.
        floor: s₀ of `double_centred`.
        tail: calibrated, of the score of a single stream.
        budget: probability with which a healthy step may raise an alarm; None for never.
    """

    def __init__(
        self, layers: int, *, ranks: int = 1, floor: float, tail: Tail, budget: float | None
    ) -> None:
        self.past = DoubleCentred(layers, ranks=ranks, floor=floor)
        self.threshold = PeakThreshold(budget, tail.of_the_largest(ranks * layers))
        self._steps = 0
        self._alarmed = -_SEPARATE  # step of the newest alarm

    @property
    def at_once(self) -> int:
        """Steps that may be judged together; at least 1."""
        return self.past.until_renewal

    def judge(self, x: Floats) -> Judged:
        """Judge some steps; nothing is changed.

        Args:
            x: float64 (steps, ranks, layers), no more steps than `at_once`; NaN for what is not
                to be judged.
        """
        scored = self.past.score(x)
        with np.errstate(invalid="ignore"):
            over = np.abs(scored.z) > self.threshold.value
        return Judged(scored.residual, scored.z, over)

    def admit(self, judged: Judged, spared: Bools | None = None) -> Bools | None:
        """Take in steps that were judged.

        Args:
            judged: all of the steps.
            spared: streams not to be admitted for another reason, like `over`; None for none.

        Returns:
            Streams that begin anew, bool (ranks, layers); None for none.
        """
        alarms = bool(judged.over.any())
        out = judged.over if spared is None else judged.over | spared
        anew = self.past.admit(judged.residual, ~out if alarms or spared is not None else None)
        self.threshold.take(self._separate(largest(judged.score), judged.over, alarms=alarms))
        self._steps += len(judged.score)
        if self._steps % RENEWAL == 0:
            self.threshold.renew()
        return anew

    def _separate(self, peaks: Floats, over: Bools, *, alarms: bool) -> Floats:
        """Peaks of the steps, NaN for an alarm that goes on."""
        if not alarms:
            return peaks
        peaks = peaks.copy()
        for place in np.flatnonzero(over.any(axis=(1, 2))):
            step = self._steps + int(place)
            if step - self._alarmed < _SEPARATE:
                peaks[place] = np.nan
            self._alarmed = step
        return peaks

    def remember(self, steps: int) -> tuple[Any, ...]:
        """What `go_back` needs to undo as many steps without an alarm."""
        return self.past.remember(steps), self.threshold.remember(steps), self._steps

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Undo what was admitted since; there was no alarm in it."""
        past, threshold, self._steps = remembered
        self.past.go_back(past)
        self.threshold.go_back(threshold)


def largest(scores: Floats) -> Floats:
    """The largest |score| of each step, shape (steps,); NaN where there is none."""
    flat = np.abs(scores).reshape(len(scores), -1)
    if not flat.shape[1]:
        return np.full(len(flat), np.nan)
    most: Floats = np.fmax.reduce(flat, axis=1)
    return most
