"""A layer's norm as a multiple of its recent average: the first rule that this project had."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...detect.baseline import RATIO_LIMIT, NormWindow
from ..series import Floats, SignalSeries
from .scorer import Scorer


class AverageMultiple(Scorer):
    """Each layer's gradient norm over its average of the last 64 healthy steps.

    Source: `detect.baseline`, whose limit of 32 is calibrated on healthy runs of the sample GPT.
    Zero, missing and non-finite norms are neither judged nor taken in, nor are those in alarm.
    """

    name: ClassVar[str] = "multiple of average"
    published: ClassVar[float | None] = RATIO_LIMIT

    def __init__(self) -> None:
        self._window: NormWindow | None = None

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        norms = np.where(series.nonfinite[row] > 0, np.nan, series.norms[row])
        if self._window is None:
            self._window = NormWindow(len(norms))
        out[:-1] = self._window.ratio(norms)
        self._window.admit(norms, ~(out[:-1] > RATIO_LIMIT))
