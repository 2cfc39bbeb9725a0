"""Detectors that see nothing but the loss."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

WINDOW: Final = 128
WARM_UP: Final = 32
Z_LIMIT: Final = 6.0
_MAD_TO_SIGMA: Final = 1.4826  # the MAD of a normal distribution is σ/1.4826
MEAN_OF: Final = 10
TIMES_ABOVE: Final = 2.0


class LossRobustZ(Scorer):
    """(loss − median)/(1.4826·MAD) over the last 128 steps, one-sided.

    Source: the modified z-score of Iglewicz and Hoaglin (1993), with 6 in place of their 3.5: a
    loss has heavier tails than what 3.5 was made for. A loss that is not finite, or raises the
    alarm, does not enter the window; NaN is no alarm.
    """

    name: ClassVar[str] = "loss, robust z"
    published: ClassVar[float | None] = Z_LIMIT

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        loss = float(series.loss[row])
        if len(self._window) >= WARM_UP:
            out[-1] = _robust_z(self._window, loss)
        if math.isfinite(loss) and not out[-1] > Z_LIMIT:
            self._window.append(loss)


def _robust_z(window: deque[float], value: float) -> float:
    past = np.asarray(window)
    middle = float(np.median(past))
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(past - middle)))
    if sigma == 0:
        return math.copysign(math.inf, value - middle) if value != middle else 0.0
    return (value - middle) / sigma


class LossOverMean(Scorer):
    """(loss − mean)/mean of the last ten losses, where the loss is worse than the one before.

    Source: Lightning Fabric's `SpikeDetection` with its defaults: a spike is a loss that is not
    finite, or worse than the last and further from the running mean of 10 than twice that mean.
    There training stops at a spike; here it goes on, and the spike does not enter the mean.
    """

    name: ClassVar[str] = "loss, running mean"
    published: ClassVar[float | None] = TIMES_ABOVE

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=MEAN_OF)

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        loss = float(series.loss[row])
        if self._window:
            out[-1] = self._distance(loss)
        if not out[-1] > TIMES_ABOVE:
            self._window.append(loss)

    def _distance(self, loss: float) -> float:
        if not math.isfinite(loss):
            return math.inf
        if loss <= self._window[-1]:
            return 0.0
        mean = float(np.mean(self._window))
        return abs(loss - mean) / abs(mean) if mean else math.inf
