"""Whether a gradient or the loss is not finite."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer


class Nonfinite(Scorer):
    """Number of elements of each layer's gradient that are NaN or infinite; 1 for such a loss.

    Every framework has this check, and scalers for mixed precision depend on it. So it stands
    beside each detector that is compared, and apart from all of them.
    """

    name: ClassVar[str] = "non-finite"
    published: ClassVar[float | None] = 0.0

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        out[:-1] = series.nonfinite[row]
        out[-1] = float(not np.isfinite(series.loss[row]))
