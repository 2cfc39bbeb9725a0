"""The rows of a log, packed: eight bytes a number, whatever else the file holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..detect.series_log import Column, SeriesLog
from .columns import Columns
from .numbers import number

ROLES: Final = ("loss", "grad_norm", "lr", "loss_scale")
_LARGEST_STEP: Final = 2**53


@dataclass
class RunRows:
    """The rows of one run, in the order of the file."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: dict[str, array[float]] = field(
        default_factory=lambda: {role: array("d") for role in ROLES}
    )
    given: dict[str, bytearray] = field(
        default_factory=lambda: {role: bytearray() for role in ROLES}
    )

    def add(self, step: float, row: Sequence[float | None]) -> None:
        """Append a row, with a value or None for each of `ROLES`.

        A row of the same step that only adds what the last one lacks completes it: loggers write
        loss and gradient norm apart.
        """
        if self.steps and self.steps[-1] == step and not self._both(row):
            for role, value in zip(ROLES, row, strict=True):
                if value is not None:
                    self.values[role][-1], self.given[role][-1] = value, 1
            return
        self.steps.append(step)
        for role, value in zip(ROLES, row, strict=True):
            self.values[role].append(np.nan if value is None else value)
            self.given[role].append(value is not None)

    def _both(self, row: Sequence[float | None]) -> bool:
        pairs = zip(ROLES[:2], row, strict=False)
        return any(value is not None and self.given[role][-1] for role, value in pairs)

    def log(self) -> SeriesLog:
        """As arrays; a column without any value is None."""
        columns = {
            role: Column(np.array(self.values[role]), np.array(self.given[role], dtype=np.bool_))
            for role in ROLES
            if any(self.given[role])
        }
        return SeriesLog(np.array(self.steps, dtype=np.float64).astype(np.int64), **columns)


@dataclass
class LogTable:
    """What was read of one file.

    Attributes:
        format: its format, in words.
        columns: the columns that were read.
        runs: the rows of each run, by its name; "" where the file knows no runs.
        notes: what a reader has to know.
    """

    format: str
    columns: Columns
    runs: dict[str, RunRows] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class TableBuilder:
    """Takes rows one by one and keeps the numbers of the chosen columns.

    Args:
        format: of the file, in words.
        columns: the chosen ones.
    """

    def __init__(self, format: str, columns: Columns) -> None:
        self._table = LogTable(format, columns)
        self._rows = 0
        self._unused = 0
        self._no_step = 0
        self._no_number = dict.fromkeys(ROLES, 0)

    def add(self, run: object, step: object, cells: Sequence[object]) -> None:
        """A row as the file has it: cells in the order of `ROLES`, None for what it lacks."""
        row = [self._number(role, cell) for role, cell in zip(ROLES, cells, strict=True)]
        if row[0] is None and row[1] is None:
            self._unused += 1
            return
        name = "" if run is None else str(run).strip()
        rows = self._table.runs.get(name)
        if rows is None:
            rows = self._table.runs[name] = RunRows()
        at = float(len(rows.steps)) if self._table.columns.step is None else _step(step)
        if at is None:
            self._no_step += 1
            return
        self._rows += 1
        rows.add(at, row)

    def _number(self, role: str, cell: object) -> float | None:
        try:
            return number(cell)
        except ValueError:
            self._no_number[role] += 1
            return None

    def done(self, notes: Sequence[str] = ()) -> LogTable:
        """The table, with notes on what was left out."""
        table = self._table
        table.notes += notes
        for role, count in self._no_number.items():
            name = table.columns.as_dict()[role]
            if count:
                table.notes.append(f"{name} is no number in {_rows(count)}: taken as not logged")
        if self._unused:
            table.notes.append(
                f"{_rows(self._unused)} without loss and gradient norm (evaluation, say) left out"
            )
        if self._no_step:
            table.notes.append(f"{_rows(self._no_step)} without a step left out")
        if table.columns.step is None:
            table.notes.append("no step column: rows are counted from 0")
        if table.columns.validation:
            table.notes.append("only a loss of validation: it is judged as the loss")
        return table


def _step(cell: object) -> float | None:
    try:
        step = number(cell)
    except ValueError:
        return None
    if step is None or not abs(step) < _LARGEST_STEP:
        return None
    return float(int(step))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
