"""What is odd on a row without any past: values that are not finite, zeros, the loss scale."""

from __future__ import annotations

from typing import Final

import numpy as np

from .loss_scale import SMALLEST
from .series_incidents import RowAlarm
from .series_log import Bools, Column, SeriesLog

_ZERO_RUN: Final = 32
_LONGER: Final = 4  # times the longest run of zeros before


def not_finite(column: Column, kind: str, excused: Bools) -> tuple[list[RowAlarm], int]:
    """Alarms for NaN and infinities, and how many rows are excused.

    Args:
        column: the series.
        kind: of the alarms.
        excused: rows on which a loss scaler may still search its scale. A run of such values
            counts all the same if it goes on beyond them, or to the log's end.
    """
    rows = np.flatnonzero(column.given)
    odd = column.odd[rows]
    alarms: list[RowAlarm] = []
    quiet = 0
    for first, last in _runs(odd):
        run = rows[first:last]
        if excused[run].all() and last < len(rows):
            quiet += len(run)
        else:
            alarms += [RowAlarm(int(row), kind, float(column.values[row])) for row in run]
    return alarms, quiet


def zeros(norm: Column) -> list[RowAlarm]:
    """Alarms where a gradient stays exactly zero for far longer than ever before.

    Single zeros are real: a batch without any advantage in reinforcement learning has none.
    """
    rows = np.flatnonzero(norm.given)
    zero = norm.values[rows] == 0
    if zero.all():
        return []  # not recorded, rather than zero
    longest = 0
    alarms: list[RowAlarm] = []
    for first, last in _runs(zero):
        if first >= _ZERO_RUN and last - first > max(_ZERO_RUN, _LONGER * longest):
            alarms += [RowAlarm(int(row), "grad_norm_zero", 0.0) for row in rows[first:last]]
        longest = max(longest, last - first)
    return alarms


def collapsing_scale(scale: Column) -> list[RowAlarm]:
    """Alarms where the loss scale has fallen below 1: it then makes underflow worse.

    A scale that never was larger was set so, as for bfloat16, and is no collapse.
    """
    rows = np.flatnonzero(scale.finite)
    values = scale.values[rows]
    was_larger = np.maximum.accumulate(values) >= 2 * SMALLEST if len(values) else values > 0
    low = np.flatnonzero(was_larger & (values < SMALLEST))
    return [RowAlarm(int(rows[at]), "loss_scale_collapse", float(values[at])) for at in low]


def scaler_skips(log: SeriesLog) -> Bools:
    """Rows at or right after which the loss scale falls: the scaler left that step out."""
    skips = np.zeros(len(log), dtype=np.bool_)
    if log.loss_scale is None:
        return skips
    rows = np.flatnonzero(log.loss_scale.finite)
    falls = np.diff(log.loss_scale.values[rows]) < 0
    skips[rows[:-1][falls]] = True
    skips[rows[1:][falls]] = True
    return skips


def _runs(flags: Bools) -> list[tuple[int, int]]:
    """First and one past the last index of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
