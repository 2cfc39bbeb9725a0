"""Two rules over the recent past of each layer's gradient norm.

Both judge against a window per layer that only admits finite, non-zero norms which raised no
alarm: one NaN must not poison the baseline, and an anomaly must not become the new normal.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
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
_NEARLY: Final = 1 - 1e-9
_VALUES: Final = 1 << 17  # of windows that are looked at together
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

    def admit_quiet(self, norms: Floats, distance: float) -> bool:
        """Take in the norms of several steps, if each is within both limits at its turn.

        Args:
            norms: shape (steps, layers).
            distance: between logs, within which of the window's median a norm is within both.

        Returns:
            False if one may not be: nothing was taken in.
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
        if columns.size and not self._are_within(logs, columns, usable):
            return False
        if not usable.all():
            for row, healthy in zip(norms, usable, strict=True):
                self.admit(row, healthy)
            return True
        self._logs[(self._seen + steps) % WINDOW, np.arange(norms.shape[1])] = logs
        self._seen += len(norms)
        return True

    def _are_within(self, logs: Floats, columns: NDArray[np.intp], usable: Bools) -> bool:
        """Whether these layers' norms, admitted one after the other, are within both limits."""
        if not usable[:, columns].all():
            return False  # the window would not move on by one with each step
        at_once = max(1, _VALUES // (WINDOW * len(logs)))  # layers: bounds the memory for it
        parts = (columns[i : i + at_once] for i in range(0, len(columns), at_once))
        return all(self._part_is_within(logs[:, part], part) for part in parts)

    def _part_is_within(self, logs: Floats, columns: NDArray[np.intp]) -> bool:
        seen = self._seen[columns]
        oldest_first = (seen + np.arange(WINDOW)[:, None]) % WINDOW
        course = np.concatenate([self._logs[oldest_first, columns], logs[:-1]])
        windows = sliding_window_view(course, WINDOW, axis=0).reshape(-1, WINDOW).T
        by_then = (seen + np.arange(len(logs))[:, None]).ravel()
        now, counts = logs.ravel(), np.minimum(by_then, WINDOW)
        judgeable = by_then >= WARM_UP
        windows, now, counts = windows[:, judgeable], now[judgeable], counts[judgeable]
        ratio = np.exp(now) / _average(windows)
        z = np.abs(_z(windows, counts, now))
        # what the last bits decide is left to one by one
        return bool((ratio < _NEARLY * RATIO_LIMIT).all() and (z < _NEARLY * Z_LIMIT).all())

    def ratio(self, norms: Floats, among: Bools | None = None) -> Floats:
        """Norm over the window's average norm, shape (layers,); NaN where not judgeable.

        Args:
            norms: shape (layers,).
            among: layers to score; all by default.
        """
        columns = self._columns(norms, among)
        score = np.full(len(norms), np.nan)
        score[columns] = norms[columns] / _average(self._logs[:, columns])
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
        score[columns] = _z(logs, counts, np.log(norms[columns]))
        return score

    def _columns(self, norms: Floats, among: Bools | None) -> NDArray[np.intp]:
        return np.flatnonzero(self.judgeable(norms) if among is None else among)

    def admit(self, norms: Floats, healthy: Bools) -> None:
        """Take in the norms of layers that raised no alarm."""
        columns = np.flatnonzero(healthy & np.isfinite(norms) & (norms > 0))
        self._logs[self._seen[columns] % WINDOW, columns] = np.log(norms[columns])
        self._seen[columns] += 1


def _average(logs: Floats) -> Floats:
    """Average norm of each column of log norms."""
    average: Floats = np.nanmean(np.exp(logs), axis=0)
    return average


def _z(logs: Floats, counts: NDArray[np.int64], now: Floats) -> Floats:
    """Robust z of a log norm against each column, of whose values `counts` are not NaN."""
    median = _median(logs, counts)
    sigma = np.maximum(_MAD_TO_SIGMA * _median(np.abs(logs - median), counts), SIGMA_FLOOR)
    z: Floats = (now - median) / sigma
    return z


def _median(values: Floats, counts: NDArray[np.int64]) -> Floats:
    """Median down each column, whose first `counts` sorted values are not NaN."""
    if not counts.size:
        return np.empty(0)
    ordered = np.sort(values, axis=0)  # NaN sorts last
    columns = np.arange(values.shape[1])
    middle: Floats = (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2
    return middle
