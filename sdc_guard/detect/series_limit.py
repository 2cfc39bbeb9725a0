"""The limit on one side of a series' z, for a budget of false alarms a row.

Peaks over threshold (Pickands 1975; for streams Siffer et al. 2017): above a high quantile the
tail of most distributions is a generalised Pareto one, whose parameters follow from the excesses
by probability-weighted moments (Hosking & Wallis 1987).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .series_baseline import Floats

# Calibrated with benchmarks/calibrate_series.py; see there for the data.
BEFORE_ENOUGH: Final = 10.0
AT_LEAST: Final = 6.0
AT_MOST: Final = 30.0
ENOUGH: Final = 1000
KEPT: Final = 20_000
_QUANTILE: Final = 0.98
_REFIT: Final = 256


class SeriesLimit:
    """Learns from the scores that raised no alarm.

    Args:
        budget: false alarms a row on this side.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._scores: Floats = np.empty(0)
        self._seen = 0
        self.value = BEFORE_ENOUGH

    @property
    def until_next(self) -> int:
        """Scores until the limit may change."""
        return _REFIT - self._seen % _REFIT

    def observe(self, scores: Floats) -> None:
        """Take in scores, at most `until_next` of them; 0 for one of the other side."""
        before = self._seen // _REFIT
        self._seen += len(scores)
        self._scores = np.concatenate([self._scores, scores])[-KEPT:]
        if self._seen // _REFIT > before and self._seen >= ENOUGH:
            limit = tail_quantile(self._scores, self._budget)
            self.value = float(np.clip(limit, AT_LEAST, AT_MOST))


def tail_quantile(scores: Floats, probability: float) -> float:
    """The value that is exceeded with this probability, by a Pareto tail above the 98th percentile.

    Args:
        scores: shape (n,).
        probability: smaller than 0.02.
    """
    start = float(np.quantile(scores, _QUANTILE))
    excesses = np.sort(scores[scores > start] - start)
    if len(excesses) < 2:
        return start
    count = len(excesses)
    mean = float(excesses.mean())
    weighted = float((excesses * (count - 0.65 - np.arange(count)) / count).mean())
    if mean <= 2 * weighted:  # a tail without end: heavier than the moments can say
        return float("inf")
    shape = 2 - mean / (mean - 2 * weighted)
    size = 2 * mean * weighted / (mean - 2 * weighted)
    share = probability * len(scores) / count
    if abs(shape) < 1e-9:
        return start - size * float(np.log(share))
    return start + size / -shape * (1 - share**-shape) if shape else start
