"""Small lasting shifts of many streams: CUSUM of their z, and its threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .cusum import Cusum, larger
from .double_centred import RENEWAL, Bools, Floats
from .peaks import PeakThreshold, Tail

# Half as much as a shift of two σ brings in half of a window, in which it is still a shift
LOWEST: Final = 24.0


@dataclass(frozen=True)
class JudgedShift:
    """Some steps judged, float64 and bool (steps, ranks, layers).

    Attributes:
        up, down: the sums after each step.
        score: the larger sum, negative for a shift downwards; NaN where there is no z.
        over: |score| above the threshold; None where nothing is.
    """

    up: Floats
    down: Floats
    score: Floats
    over: Bools | None


class ShiftWatch:
    """Sums, and their threshold.

    Args:
        layers: how many.
        ranks: how many are compared with each other.
        tail: calibrated, of the larger sum of a single stream.
        budget: probability with which a healthy step may raise an alarm; None for never.
    """

    def __init__(self, layers: int, *, ranks: int = 1, tail: Tail, budget: float | None) -> None:
        self._cusum = Cusum((ranks, layers))
        self.threshold = PeakThreshold(budget, tail.of_the_largest(ranks * layers), LOWEST)
        self._steps = 0

    def judge(self, z: Floats) -> JudgedShift:
        """Judge some steps; nothing is changed.

        Args:
            z: float64 (steps, ranks, layers); NaN for what is not to be counted.
        """
        up, down = self._cusum.after(z)
        score = np.where(np.isfinite(z), larger(up, down), np.nan)
        over = np.abs(score) > self.threshold.value
        return JudgedShift(up, down, score, over if over.any() else None)

    def admit(self, judged: JudgedShift, anew: Bools | None = None) -> None:
        """Take in steps that were judged; what raised an alarm begins at zero again.

        Args:
            judged: all of the steps.
            anew: further streams that do, bool (ranks, layers).
        """
        self._cusum.move_to(judged.up[-1], judged.down[-1])
        if judged.over is not None:
            told: Bools = np.logical_or.reduce(judged.over, axis=0)
            self._cusum.restart(told)
        if anew is not None:
            self._cusum.restart(anew)
        self.threshold.take(largest(judged.score))
        self._steps += len(judged.score)
        if self._steps % RENEWAL == 0:
            self.threshold.renew()

    def remember(self, steps: int) -> tuple[Any, ...]:
        """What `go_back` needs to undo as many steps without an alarm."""
        return self._cusum.up, self._cusum.down, self.threshold.remember(steps), self._steps

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Undo what was admitted since; there was no alarm in it."""
        up, down, threshold, self._steps = remembered
        self._cusum.move_to(up, down)
        self.threshold.go_back(threshold)


def largest(scores: Floats) -> Floats:
    """The largest |score| of each step, shape (steps,); NaN where there is none."""
    flat = np.abs(scores).reshape(len(scores), -1)
    most: Floats = np.fmax.reduce(flat, axis=1, initial=np.nan)
    return most
