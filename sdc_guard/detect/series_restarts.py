"""Where a training was started again, as far as its log shows it."""

from __future__ import annotations

from typing import Final

import numpy as np

from .series_log import Bools, Floats, SeriesLog

# Signs of one restart that come within so many rows are one restart: a scaler that searches its
# scale skips some steps, and the learning rate is 0 in these.
ONE_RESTART: Final = 32
_RISES_WITHIN: Final = 16
_GAP: Final = 5  # times the usual distance between two logged steps


def restarts(log: SeriesLog) -> dict[int, str]:
    """First row of each restart, and the sign that shows it."""
    signs = {int(row): "the step goes back" for row in np.flatnonzero(np.diff(log.steps) < 0) + 1}
    for row in _learning_rate_starts(log):
        signs.setdefault(row, "the learning rate starts again from 0")
    found: dict[int, str] = {}
    newest = -ONE_RESTART - 1
    for row in sorted(signs):
        if row - newest > ONE_RESTART or signs[row] == "the step goes back":
            found[row] = signs[row]
        newest = row
    return found


def gaps(log: SeriesLog) -> list[int]:
    """Rows before which steps are missing: further on than five times the usual distance."""
    forward = np.diff(log.steps)
    forward_only = forward[forward > 0]
    if len(forward_only) < ONE_RESTART:
        return []
    usual = float(np.median(forward_only))
    return [int(row) for row in np.flatnonzero(forward > _GAP * usual) + 1]


def _learning_rate_starts(log: SeriesLog) -> list[int]:
    """Rows at which the learning rate falls at once and climbs again: a warm-up.

    A fall alone is a schedule's step, and a climb alone a schedule with cycles.
    """
    if log.lr is None:
        return []
    rows = np.flatnonzero(log.lr.finite)
    rate = log.lr.values[rows]
    falls = np.flatnonzero(rate[1:] < 0.5 * rate[:-1]) + 1
    return [int(rows[at]) for at in falls if at >= ONE_RESTART and _climbs(rate[at:])]


def _climbs(rate: Floats) -> bool:
    soon = rate[1 : 1 + _RISES_WITHIN]
    return bool(len(soon) and soon.max() > 1.5 * rate[0])


def starting(log: SeriesLog, found: dict[int, str], rows: int) -> Bools:
    """Rows within so many of the log's beginning or a restart's, or with a learning rate of 0."""
    near = np.zeros(len(log), dtype=np.bool_)
    for row in (0, *found):
        near[row : row + rows] = True
    if log.lr is not None:
        near |= log.lr.given & (log.lr.values == 0)
    return near
