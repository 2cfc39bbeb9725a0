"""A jump of the largest gradient element to a thousand times its average."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

DECAY: Final = 0.97
WARM_UP: Final = 25
JUMP: Final = 1000.0


class MaxJump(Scorer):
    """Each layer's largest absolute element over its exponential average.

    Source: a rule of thumb of training teams, who look for a flipped exponent bit by a jump of a
    thousand times in max|g|. It names no memory and no start: those of the z-score of the global
    norm are taken (0.97, 25 steps). The average takes in everything, as a plain one does: a NaN
    is no jump, and ends the detector for that layer.
    """

    name: ClassVar[str] = "max jump ×1000"
    published: ClassVar[float | None] = JUMP

    def __init__(self) -> None:
        self._average: Floats = np.empty(0)
        self._seen = np.zeros(0, dtype=np.int64)

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        values, missing = series.max_abs[row], series.missing[row]
        if not self._average.size:
            self._average = np.full(len(values), np.nan)
            self._seen = np.zeros(len(values), dtype=np.int64)
        judged = ~missing & (self._seen >= WARM_UP)
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:-1][judged] = (values / self._average)[judged]
        average = DECAY * self._average + (1 - DECAY) * values
        average = np.where(self._seen == 0, values, average)
        self._average = np.where(missing, self._average, average)
        self._seen += ~missing
