"""Ten times the largest of the first hundred values, then frozen."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

SAMPLES: Final = 100


class FrozenMaximum(Scorer):
    """Each layer's gradient norm, and the loss, over the largest of its first 100 finite values.

    Source: Megatron-LM, `rerun_state_machine.is_unexpectedly_large` with its defaults: a value of
    ten times the maximum of the first 100 samples or more is unexpectedly large. There the
    gradients of a bucket are one value; here those of a layer are, which can only be sharper. The
    maximum is never renewed, and a value that is not finite is passed over.
    """

    name: ClassVar[str] = "frozen maximum"
    published: ClassVar[float | None] = 10.0

    def __init__(self) -> None:
        self._seen: Floats | None = None
        self._largest: Floats = np.empty(0)

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        values = np.abs(np.append(series.norms[row], series.loss[row]))
        if self._seen is None:
            self._seen, self._largest = np.zeros(len(values)), np.zeros(len(values))
        usable = np.isfinite(values)
        sampling = usable & (self._seen < SAMPLES)
        judged = usable & ~sampling
        with np.errstate(divide="ignore", invalid="ignore"):
            out[judged] = (values / self._largest)[judged]
        self._largest[sampling] = np.maximum(self._largest, values)[sampling]
        self._seen += sampling
