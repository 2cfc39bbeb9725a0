"""Two rules over the recent past of each layer's gradient norm.

Both judge against a window per layer that only admits finite, non-zero norms which raised no
alarm: one NaN must not poison the baseline, and an anomaly must not become the new normal.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOW: Final = 64
WARM_UP: Final = 32
SIGMA_FLOOR: Final = 0.10
# Calibrated with benchmarks/calibrate_norms.py on healthy runs of the sample GPT, seeds 100 to
# 107 (2,315 steps, 52 layers): the largest ratio was 15.9, the largest |z| 13.1. The rule of
# thumb of ten times the average would have raised alarms in three of those eight runs.
RATIO_LIMIT: Final = 32.0
Z_LIMIT: Final = 20.0
_MAD_TO_SIGMA: Final = 1.4826  # the MAD of a normal distribution is σ/1.4826


class NormWindow:
    """The last `WINDOW` admitted log norms of each layer.

    Args:
        layers: number of layers.
    """

    def __init__(self, layers: int) -> None:
        self._logs: Floats = np.full((WINDOW, layers), np.nan)
        self._seen = np.zeros(layers, dtype=np.int64)

    def judgeable(self, norms: Floats) -> Bools:
        """Layers with enough past and a norm to judge.

        A true zero gradient and a missing one (NaN) are not small norms: neither is judged here.
        """
        return (self._seen >= WARM_UP) & np.isfinite(norms) & (norms > 0)

    def far(self, norms: Floats, distance: float) -> Bools:
        """Judgeable layers whose log norm is further than `distance` from one in the window.

        The window's median and average lie between its extremes: only of these layers can the
        scores below be large, and they are far cheaper to find than to score.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(norms)
            lowest = np.fmin.reduce(self._logs, axis=0)
            highest = np.fmax.reduce(self._logs, axis=0)
            apart: Bools = np.maximum(logs - lowest, highest - logs) > distance
        return self.judgeable(norms) & apart

    def admit_near(self, norms: Floats, distance: float) -> bool:
        """Take in the norms of several steps, if none is far from the median of its window.

        Args:
            norms: shape (steps, layers).
            distance: between logs.

        Returns:
            False if one may be that far: nothing was taken in.
        """
        if len(norms) >= WINDOW:
            return False
        steps = np.arange(len(norms))[:, None]
        usable = np.isfinite(norms) & (norms > 0)
        logs = np.log(norms, where=usable, out=np.full(norms.shape, np.nan))
        # the window grows by these very steps: the extremes are those of both
        past = np.concatenate([self._logs, logs[:-1]])
        apart = np.fmax(logs - np.fmin.reduce(past), np.fmax.reduce(past) - logs) > distance
        apart &= self._seen + steps >= WARM_UP
        columns = np.flatnonzero(apart.any(axis=0))
        if columns.size and self._may_be_far(logs[:, columns], columns, steps, distance):
            return False
        if not usable.all():
            for row, healthy in zip(norms, usable, strict=True):
                self.admit(row, healthy)
            return True
        self._logs[(self._seen + steps) % WINDOW, np.arange(norms.shape[1])] = logs
        self._seen += len(norms)
        return True

    def _may_be_far(
        self, logs: Floats, columns: NDArray[np.intp], steps: NDArray[np.int64], distance: float
    ) -> bool:
        """Whether a log may be further than `distance` from the median of its window by then.

        k more values move the median by no more than k places among those that are there now.
        """
        counts = np.minimum(self._seen[columns], WINDOW)
        ordered = np.sort(self._logs[:, columns], axis=0)  # NaN sorts last
        below, above = (counts - 1) // 2 - steps, counts // 2 + steps
        places = np.arange(len(columns))
        low = np.where(below < 0, -np.inf, ordered[np.maximum(below, 0), places])
        high = np.where(above >= counts, np.inf, ordered[np.minimum(above, WINDOW - 1), places])
        return bool((np.fmax(logs - low, high - logs) > distance).any())

    def ratio(self, norms: Floats, among: Bools | None = None) -> Floats:
        """Norm over the window's average norm, shape (layers,); NaN where not judgeable.

        Args:
            norms: shape (layers,).
            among: layers to score; all by default.
        """
        columns = self._columns(norms, among)
        score = np.full(len(norms), np.nan)
        score[columns] = norms[columns] / np.nanmean(np.exp(self._logs[:, columns]), axis=0)
        return score

    def robust_z(self, norms: Floats, among: Bools | None = None) -> Floats:
        """(log norm − median) / max(1.4826·MAD, SIGMA_FLOOR), shape (layers,).

        NaN where not judgeable. Negative for a norm that is too small.

        Args:
            norms: shape (layers,).
            among: layers to score; all by default.
        """
        columns = self._columns(norms, among)
        score = np.full(len(norms), np.nan)
        logs, counts = self._logs[:, columns], np.minimum(self._seen[columns], WINDOW)
        median = _median(logs, counts)
        sigma = np.maximum(_MAD_TO_SIGMA * _median(np.abs(logs - median), counts), SIGMA_FLOOR)
        score[columns] = (np.log(norms[columns]) - median) / sigma
        return score

    def _columns(self, norms: Floats, among: Bools | None) -> NDArray[np.intp]:
        return np.flatnonzero(self.judgeable(norms) if among is None else among)

    def admit(self, norms: Floats, healthy: Bools) -> None:
        """Take in the norms of layers that raised no alarm."""
        columns = np.flatnonzero(healthy & np.isfinite(norms) & (norms > 0))
        self._logs[self._seen[columns] % WINDOW, columns] = np.log(norms[columns])
        self._seen[columns] += 1


def _median(values: Floats, counts: NDArray[np.int64]) -> Floats:
    """Median down each column, whose first `counts` sorted values are not NaN."""
    if not counts.size:
        return np.empty(0)
    ordered = np.sort(values, axis=0)  # NaN sorts last
    columns = np.arange(values.shape[1])
    middle: Floats = (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2
    return middle
