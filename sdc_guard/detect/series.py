"""Judging a training log of scalars: loss and gradient norm, without the training.

A row is alarming if a value is not finite, or if its robust z is beyond a limit that is meant to
be passed by `budget` rows of a healthy log; see `series_baseline` and `peaks`. Alarming
values never enter what later ones are compared with. Alarms that belong together are one incident.
A restart is an event and not an incident: what is compared with starts anew there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .peaks import Tail
from .series_baseline import LOSS_SCALE, NORM_SCALE, WARM_UP, Scale
from .series_incidents import RowAlarm, SeriesIncident, incidents
from .series_log import Bools, Column, SeriesLog
from .series_restarts import ONE_RESTART, gaps, restarts, starting
from .series_states import collapsing_scale, not_finite, scaler_skips, zeros
from .series_tails import LOWEST, divided
from .series_walk import Walked, beside, own_tails, walk

DEFAULT_BUDGET: Final = 1e-4
_STARTING_ROWS: Final = 10  # after a start, in which a loss scaler may still search its scale


@dataclass(frozen=True)
class SeriesEvent:
    """What happened without being odd by itself.

    Attributes:
        step: where.
        kind: "restart".
        text: the sign that shows it, and what differs after it.
    """

    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class SeriesReport:
    """What a log shows.

    Attributes:
        incidents: in the order of the rows.
        events: likewise.
        notes: what a reader has to know of how it was judged.
    """

    incidents: tuple[SeriesIncident, ...]
    events: tuple[SeriesEvent, ...]
    notes: tuple[str, ...]


@np.errstate(over="ignore", invalid="ignore")  # values near the largest: as if not finite
def judge(log: SeriesLog, budget: float = DEFAULT_BUDGET) -> SeriesReport:
    """Judge the rows of one run.

    Args:
        log: at least one row, with a loss or a gradient norm.
        budget: false incidents a row that are accepted, above 0 and below 0.02. It is divided
            among the two sides of each signal.
    """
    began = restarts(log)
    notes: list[str] = []
    norm = log.grad_norm
    if norm is not None and norm.given.any() and not norm.values[norm.given].any():
        notes.append("the grad norm is 0 in every row, as if it was not recorded: loss only")
        norm = None
    log = replace(log, grad_norm=norm)
    walks = _walks(log, began, budget)
    began |= _from_gaps(walks, began)
    alarms, told = _states(log, began)
    notes += told
    for name, (column, walked) in walks.items():
        alarms += walked.alarms(name, column)
        if walked.judged < WARM_UP:
            notes.append(
                f"only {walked.judged} usable rows of {name}: compared with no past, "
                "values that are not finite aside"
            )
    adopted = [row for _, walked in walks.values() for row in walked.adopted]
    return SeriesReport(
        tuple(incidents(alarms, log.steps, list(began), adopted)),
        _events(log, began, walks),
        tuple(notes),
    )


@dataclass(frozen=True)
class _Walk:
    """A walk over the usable rows of a column, and which those are."""

    rows: np.ndarray[tuple[int], np.dtype[np.intp]]
    walked: Walked
    judged: int
    scale: Scale

    def alarms(self, name: str, column: Column) -> list[RowAlarm]:
        """An alarm for each row beyond its limit, and for what leads to it or away from it."""
        found = []
        for at in beside(self.walked.z, self.walked.alarms, LOWEST).tolist():
            row, z = int(self.rows[at]), float(self.walked.z[at])
            usual, limit = float(self.walked.usual[at]), float(self.walked.limits[at])
            level = float(np.exp(usual)) if self.scale.logarithm else usual
            kind = f"{name}_{'high' if z > 0 else 'low'}"
            found.append(RowAlarm(row, kind, float(column.values[row]), abs(z), limit, level))
        return found

    @property
    def adopted(self) -> list[int]:
        return [int(self.rows[at]) for at in self.walked.adopted]

    @property
    def gaps(self) -> list[int]:
        return [int(self.rows[at]) for at in self.walked.gaps]

    def shift_text(self, name: str, near: int) -> str:
        """What the level did at the restart in this row, "" if nothing to speak of."""
        for shift in self.walked.shifts:
            if 0 <= int(self.rows[shift.row]) - near <= ONE_RESTART:
                change = shift.after - shift.before
                if self.scale.logarithm:
                    return f"{name} {np.exp(change):.3g} times what it was"
                return f"{name} {abs(change):.3g} {'higher' if change > 0 else 'lower'} than before"
        return ""


def _walks(log: SeriesLog, began: dict[int, str], budget: float) -> dict[str, tuple[Column, _Walk]]:
    """Walk over each signal twice: for its own tails, and then with limits from them."""
    holes = gaps(log)
    signals = {
        name: (column, scale)
        for name, column, scale in (
            ("grad_norm", log.grad_norm, NORM_SCALE),
            ("loss", log.loss, LOSS_SCALE),
        )
        if column is not None
    }
    equal = budget / (2 * max(1, len(signals)))
    tails = {
        name: own_tails(_walk(*signal, (equal, equal), None, began, holes).walked, signal[1])
        for name, signal in signals.items()
    }
    parts = divided(budget, [tail for pair in tails.values() for tail in pair])
    return {
        name: (column, _walk(column, scale, (above, below), tails[name], began, holes))
        for (name, (column, scale)), above, below in zip(
            signals.items(), parts[::2], parts[1::2], strict=True
        )
    }


def _walk(
    column: Column,
    scale: Scale,
    budgets: tuple[float, float],
    tails: tuple[Tail, Tail] | None,
    began: dict[int, str],
    holes: list[int],
) -> _Walk:
    usable = column.finite & ((column.values > 0) if scale.logarithm else True)
    rows = np.flatnonzero(usable)
    begins = np.searchsorted(rows, sorted(began)).tolist()
    after = np.searchsorted(rows, holes).tolist()
    return _Walk(
        rows, walk(column.values[rows], scale, budgets, tails, begins, after), len(rows), scale
    )


def _from_gaps(walks: dict[str, tuple[Column, _Walk]], began: dict[int, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, (_, walked) in walks.items():
        for row in walked.gaps:
            if not any(abs(row - other) <= ONE_RESTART for other in (*began, *found)):
                found[row] = f"steps are missing before it, and the {name} is another one after"
    return found


def _states(log: SeriesLog, began: dict[int, str]) -> tuple[list[RowAlarm], list[str]]:
    """Alarms that need no past, and notes on what was excused."""
    alarms: list[RowAlarm] = []
    notes: list[str] = []
    if log.loss is not None:
        alarms += not_finite(log.loss, "loss_not_finite", np.zeros(len(log), dtype=np.bool_))[0]
    if log.grad_norm is not None:
        found, quiet = not_finite(log.grad_norm, "grad_norm_not_finite", _excused(log, began))
        alarms += found + zeros(log.grad_norm)
        if quiet:
            notes.append(
                f"the grad norm is not finite in {quiet} rows in which a loss scaler searches its "
                "scale, right after a start or where the scale falls: no incident"
            )
    if log.loss_scale is not None:
        alarms += collapsing_scale(log.loss_scale)
    return alarms, notes


def _excused(log: SeriesLog, began: dict[int, str]) -> Bools:
    return starting(log, began, _STARTING_ROWS) | scaler_skips(log)


def _events(
    log: SeriesLog, began: dict[int, str], walks: dict[str, tuple[Column, _Walk]]
) -> tuple[SeriesEvent, ...]:
    found = []
    for row in sorted(began):
        said = [began[row], *(walked.shift_text(name, row) for name, (_, walked) in walks.items())]
        found.append(SeriesEvent(int(log.steps[row]), "restart", "; ".join(filter(None, said))))
    return tuple(found)
