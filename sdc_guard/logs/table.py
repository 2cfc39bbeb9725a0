"""The rows of a log, packed: eight bytes a number, whatever else the file holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..detect.series_log import Column, SeriesLog
from ..errors import LogUnreadable
from .columns import Columns
from .commas import Commas
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
        """As arrays; a column without any value is None.

        Steps with fractions, of an epoch say, are numbered from 0 in their own order.
        """
        steps = np.array(self.steps, dtype=np.float64)
        if (steps % 1).any():
            steps = np.unique(steps, return_inverse=True)[1].astype(np.float64)
        columns = {
            role: Column(np.array(self.values[role]), np.array(self.given[role], dtype=np.bool_))
            for role in ROLES
            if any(self.given[role])
        }
        return SeriesLog(steps.astype(np.int64), **columns)


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
        decimal_comma: whether a comma in a number begins its fraction.
    """

    def __init__(self, format: str, columns: Columns, *, decimal_comma: bool = False) -> None:
        self._table = LogTable(format, columns)
        self._decimal_comma = decimal_comma
        self._commas = Commas(decimal=decimal_comma)
        self._rows = 0
        self._unused = 0
        self._no_step = 0
        self._fractions = 0
        self._odd_step = ""
        self._no_number = dict.fromkeys(ROLES, 0)

    def add(self, run: object, step: object, cells: Sequence[object]) -> None:
        """A row as the file has it: cells in the order of `ROLES`, None for what it lacks."""
        row = [self._number(role, cell) for role, cell in zip(ROLES, cells, strict=True)]
        if row[0] is None and row[1] is None:
            self._unused += 1
            return
        name = "" if run is None else str(run).strip()
        rows = self._table.runs.get(name)
        counted = float(len(rows.steps)) if rows else 0.0
        at = counted if self._table.columns.step is None else self._step(step)
        if at is None:
            self._no_step += 1
            self._odd_step = self._odd_step or str(step)
            return
        if rows is None:
            rows = self._table.runs[name] = RunRows()
        self._rows += 1
        self._fractions += bool(at % 1)
        rows.add(at, row)

    def _number(self, role: str, cell: object) -> float | None:
        try:
            value = number(cell, decimal_comma=self._decimal_comma)
        except ValueError:
            self._no_number[role] += 1
            value = None
        self._commas.take(role, cell)
        return value

    def _step(self, cell: object) -> float | None:
        try:
            step = number(cell, decimal_comma=self._decimal_comma)
        except ValueError:
            return None
        self._commas.take("step", cell)
        return step if step is not None and abs(step) < _LARGEST_STEP else None

    def done(self, where: str, notes: Sequence[str] = ()) -> LogTable:
        """The table, with notes on what was left out.

        Raises:
            LogUnreadable: no row has a step, or commas may mean one thing or another.
        """
        table = self._table
        self._refuse_without_steps(where)
        table.notes += [*notes, *self._commas.notes(table.columns.as_dict(), where)]
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
        if self._fractions:
            table.notes.append(
                f"{table.columns.step} has fractions: rows are numbered from 0 in its order"
            )
        if table.columns.step is None:
            table.notes.append("no step column: rows are counted from 0")
        if table.columns.validation:
            table.notes.append("only a loss of validation: it is judged as the loss")
        return table

    def _refuse_without_steps(self, where: str) -> None:
        if self._no_step and not self._table.runs:
            raise LogUnreadable(
                f"no row has a number as its {self._table.columns.step}, but "
                f"{self._odd_step[:40]!r}", where=where,
                next_step="name another column by --step COLUMN",
            )  # fmt: skip


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
