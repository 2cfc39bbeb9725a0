"""Mean plus six standard deviations of the last 128 steps: the rule of optimizers that skip."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

WINDOW: Final = 128
SIGMAS: Final = 6.0


class SigmaSkip(Scorer):
    """(value − mean)/σ of loss and global gradient norm, the larger, one-sided.

    Source: OLMo-core's `SkipStepOptimizer` with its defaults: a step is applied only if both are
    within mean + 6 σ of the 128 steps before, once half as many are known. Skipped steps enter
    the window like others. A value of NaN is not within, so the step is skipped, and so are those
    after it until it has left the window.
    """

    name: ClassVar[str] = "mean + 6σ"
    published: ClassVar[float | None] = SIGMAS

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        norm, loss = float(series.global_norms[row]), float(series.loss[row])
        pairs = ((self._norms, norm), (self._losses, loss))
        if len(self._norms) + 1 >= WINDOW // 2:
            out[-1] = max(_sigmas(window, value) for window, value in pairs)
        for window, value in pairs:
            window.append(value)


def _sigmas(window: deque[float], value: float) -> float:
    """How many σ a value is above the window's mean; infinite where that cannot be said."""
    past = np.asarray(window)
    with np.errstate(invalid="ignore"):
        above, sigma = value - float(past.mean()), float(past.std(ddof=1))
    if math.isnan(above) or math.isnan(sigma):
        return math.inf
    if sigma == 0:
        return math.inf if above > 0 else 0.0
    return above / sigma
