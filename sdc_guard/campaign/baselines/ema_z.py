"""The z-score of the global norm against exponential averages: the rule of adaptive clipping."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

ALPHA: Final = 0.97
WARM_UP: Final = 25
Z_LIMIT: Final = 2.5
EPSILON: Final = 1e-6


class EmaZ(Scorer):
    """z = (norm − mean)/(σ + 10⁻⁶) of the global gradient norm, one-sided.

    Source: ZClip (Kumar et al., 2025), its defaults: α = 0.97, 25 steps to begin with, a spike
    above z = 2.5. Mean and variance are exponential averages; of a spike they take in what it is
    clipped to, mean + 2.5²·σ/z. A norm of NaN is no spike there and goes into the averages, after
    which nothing is a spike any more.
    """

    name: ClassVar[str] = "EMA z-score"
    published: ClassVar[float | None] = Z_LIMIT

    def __init__(self) -> None:
        self._first: list[float] = []
        self._mean = self._variance = math.nan

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        norm = float(series.global_norms[row])
        if len(self._first) < WARM_UP:
            self._first.append(norm)
            self._mean, self._variance = float(np.mean(self._first)), float(np.var(self._first))
            return
        sigma = math.sqrt(self._variance)
        z = (norm - self._mean) / (sigma + EPSILON)
        out[-1] = z
        taken = self._mean + Z_LIMIT * sigma / (z / Z_LIMIT) if z > Z_LIMIT else norm
        self._mean = ALPHA * self._mean + (1 - ALPHA) * taken
        self._variance = ALPHA * self._variance + (1 - ALPHA) * (taken - self._mean) ** 2
