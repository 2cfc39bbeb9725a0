"""The order of a log's rows: several writers in one file, rows that are not sorted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..detect.series_log import SeriesLog, Steps

# A restart goes back once and goes on from there. Two processes that write one file take turns.
_TURNS: Final = 4
_MOST_WRITERS: Final = 16
_DISORDER: Final = 32  # goings back, as many as no training restarts within its rows
_ROWS_A_RESTART: Final = 10


@dataclass(frozen=True)
class Arranged:
    """A log's rows, put so that they can be judged.

    Attributes:
        parts: each writer's rows, in its order.
        notes: what was found and done.
    """

    parts: tuple[SeriesLog, ...]
    notes: tuple[str, ...] = field(default=())


def arrange(log: SeriesLog) -> Arranged:
    """Tell restarts from several writers and from disorder by the steps alone."""
    back = int((np.diff(log.steps) <= 0).sum())
    if not back:
        return Arranged((log,))
    if len(log) > 2 and (log.steps == log.steps[0]).all():
        alike = f"the step is {log.steps[0]} in every row: rows are counted from 0"
        return Arranged((replace(log, steps=np.arange(len(log))),), (alike,))
    if back == len(log) - 1 and len(log) > 2 and (np.diff(log.steps) < 0).all():
        newest_first = "the newest rows come first: turned round"
        return Arranged((log.at(np.arange(len(log))[::-1]),), (newest_first,))
    writers = _writers(log.steps) if back >= _TURNS else None
    if writers is not None:
        return _split(log, writers)
    if back >= _DISORDER and back * _ROWS_A_RESTART > len(log):
        by_step = np.argsort(log.steps, kind="stable")
        return Arranged((log.at(by_step),), ("the rows are in no order: sorted by step",))
    return Arranged((log,))


def _writers(steps: Steps) -> NDArray[np.int64] | None:
    """Which writer each row is from, or None if the rows are not those of several in turns.

    A row goes on from the newest step below its own. If several writers are there, so that it
    might go on from either, it is the one's whose turn is longest ago.
    """
    if not _taken_up_again(steps):
        return None
    newest: list[int] = []
    turn: list[int] = []
    writer = np.empty(len(steps), dtype=np.int64)
    for row, step in enumerate(steps.tolist()):
        before = [at for at, last in enumerate(newest) if last < step]
        if before:
            one = max(before, key=lambda at: (newest[at], -turn[at]))
        elif len(newest) < _MOST_WRITERS:
            one = len(newest)
            newest.append(step)
            turn.append(row)
        else:
            return None
        writer[row], newest[one], turn[one] = one, step, row
    return writer if _cover_alike(steps, writer) else None


def _taken_up_again(steps: Steps) -> bool:
    """Whether rows go on, several times, from where an earlier writer was before a later one."""
    newest: list[int] = []
    current, turns = 0, 0
    for step in steps.tolist():
        before = [at for at, last in enumerate(newest) if last < step]
        if before:
            one = max(before, key=lambda at: (newest[at], at == current))
            turns += one < current
        elif len(newest) < _MOST_WRITERS:
            one = len(newest)
            newest.append(step)
        else:
            return False
        newest[one], current = step, one
    return turns >= _TURNS


def _cover_alike(steps: Steps, writer: NDArray[np.int64]) -> bool:
    """Whether most steps come once from each writer: rows in disorder do not."""
    counts = np.bincount(writer)
    times = np.unique(steps, return_counts=True)[1]
    return bool(counts.min() * 2 > counts.max() and (times > 1).mean() > 0.5)


def _split(log: SeriesLog, writers: NDArray[np.int64]) -> Arranged:
    count = int(writers.max()) + 1
    words = {2: "two"}.get(count, str(count))
    times = {2: "twice"}.get(count, f"{count} times")
    parts = tuple(log.at(np.flatnonzero(writers == one)) for one in range(count))
    told = (
        f"duplicate steps: {words} writers. Most steps come {times}, as when {words} processes "
        "write one log; split by their turns, each is judged by itself"
    )
    return Arranged(parts, (told + _apart(parts),))


def _apart(parts: tuple[SeriesLog, ...]) -> str:
    """By how much the first two writers' losses differ, where both have the step."""
    one, other = parts[0], parts[1]
    if one.loss is None or other.loss is None:
        return ""
    _, left, right = np.intersect1d(one.steps, other.steps, return_indices=True)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities, and losses near the largest
        apart = np.abs(one.loss.values[left] - other.loss.values[right])
    apart = apart[np.isfinite(apart)]
    return f"; their losses differ by up to {apart.max():.3g}" if apart.size else ""
