"""From alarming rows to incidents: what belongs together, told once."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from .series_log import Steps

# An incident ends after so many rows without an alarm, as a live guard's does after as many steps.
QUIET_ROWS: Final = 50

# The first that is among an incident's alarms names it: what needs no statistic, then the norm,
# which moves before the loss does.
KINDS: Final = (
    "loss_scale_collapse", "loss_not_finite", "grad_norm_not_finite", "grad_norm_zero",
    "grad_norm_high", "grad_norm_low", "loss_high", "loss_low",
)  # fmt: skip


@dataclass(frozen=True)
class RowAlarm:
    """One signal's alarm on one row.

    Attributes:
        row: number of the row.
        kind: of `KINDS`.
        value: what was logged there.
        score: |z|, 0.0 for what needs none.
        limit: what |z| was compared with; 1.0 for what needs none.
        usual: the level it was compared with, NaN if there is none.
    """

    row: int
    kind: str
    value: float
    score: float = 0.0
    limit: float = 1.0
    usual: float = float("nan")


@dataclass(frozen=True)
class SeriesIncident:
    """Alarms that belong together.

    Attributes:
        first_step: step of the first alarm.
        last_step: step of the last one.
        kind: of `KINDS`, the first that is among its alarms.
        peak: the worst value of that kind; NaN or an infinity if that was logged.
        kinds: all that are among its alarms.
        rows: alarming rows.
        score: |z| of the peak, 0.0 where it needs none.
        limit: what |z| was compared with.
        usual: the level before, NaN if there is none.
        adopted: step from which on the changed level counts as normal, or None.
        at_end: whether the log ends before it had closed.
    """

    first_step: int
    last_step: int
    kind: str
    peak: float
    kinds: tuple[str, ...]
    rows: int
    score: float
    limit: float
    usual: float
    adopted: int | None
    at_end: bool


def incidents(
    alarms: list[RowAlarm], steps: Steps, restarts: list[int], adopted: list[int]
) -> list[SeriesIncident]:
    """Group alarms into incidents.

    Args:
        alarms: in any order.
        steps: of all rows.
        restarts: rows that end whatever is open before them.
        adopted: rows at which a changed level was adopted as normal.
    """
    groups: list[list[RowAlarm]] = []
    bounds = sorted(restarts)
    for alarm in sorted(alarms, key=lambda one: one.row):
        last = groups[-1][-1].row if groups else None
        if last is None or alarm.row - last > QUIET_ROWS or _between(bounds, last, alarm.row):
            groups.append([])
        groups[-1].append(alarm)
    return [_incident(group, steps, adopted) for group in groups]


def _between(bounds: list[int], last: int, row: int) -> bool:
    return bisect_right(bounds, last) < bisect_right(bounds, row)


def _incident(group: list[RowAlarm], steps: Steps, adopted: list[int]) -> SeriesIncident:
    kinds = tuple(sorted({one.kind for one in group}, key=KINDS.index))
    peak = max((one for one in group if one.kind == kinds[0]), key=_weight)
    first, last = group[0].row, group[-1].row
    at = [row for row in adopted if first <= row <= last + QUIET_ROWS]
    return SeriesIncident(
        int(steps[first]), int(steps[last]), kinds[0], peak.value, kinds,
        len({one.row for one in group}), peak.score, peak.limit, peak.usual,
        int(steps[at[0]]) if at else None, len(steps) - 1 - last < QUIET_ROWS,
    )  # fmt: skip


def _weight(alarm: RowAlarm) -> float:
    """Which of several alarms of one kind is the worst: the lowest scale, the largest |z|."""
    if alarm.kind == "loss_scale_collapse":
        return -alarm.value
    return alarm.score / alarm.limit
