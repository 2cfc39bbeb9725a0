"""What a log showed: each writer of each run, judged by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..detect.series import SeriesReport, judge
from ..detect.series_log import Column, SeriesLog
from ..errors import UsageError
from ..shown import shown
from .columns import Asked
from .order import arrange
from .reading import read_log
from .table import ROLES, LogTable


@dataclass(frozen=True)
class Judged:
    """One run of one file, or what one of several writers wrote of it.

    Attributes:
        file: as it was given.
        format: its format, in words.
        run: its name, "" where the file knows no runs.
        writer: from 1 where several wrote the run's log, 0 otherwise.
        columns: the names of the columns that were used, by role; None for what is not there.
        rows: how many.
        first_step: the smallest.
        last_step: the largest.
        report: what it shows.
        notes: of reading and of judging.
    """

    file: str
    format: str
    run: str
    writer: int
    columns: dict[str, str | None]
    rows: int
    first_step: int
    last_step: int
    report: SeriesReport
    notes: tuple[str, ...]


def judge_file(path: Path, asked: Asked, run: str | None, budget: float) -> list[Judged]:
    """Read a log and judge it.

    Args:
        path: the file or folder.
        asked: columns that the user named.
        run: only the run of this name; all by default.
        budget: false incidents a row that are accepted.

    Raises:
        LogUnreadable: it is no log, or damaged.
        UsageError: something that was asked for is not there.
    """
    tables = read_log(path, asked)
    names = [name for table in tables for name in table.runs]
    if run is not None and run not in names:
        listed = shown(", ".join(filter(None, names[:12]))) or "no names of runs in it"
        raise UsageError(f"no run {run!r}; there are: {listed}", where=str(path))
    return [
        one
        for table in tables
        for name in table.runs
        if run is None or name == run
        for one in _judged(path, table, name, budget)
    ]


def _judged(path: Path, table: LogTable, name: str, budget: float) -> Iterator[Judged]:
    log = table.runs[name].log()
    arranged = arrange(log)
    notes = (*table.notes, *_missing(log), *arranged.notes)
    several = len(arranged.parts) > 1
    for number, part in enumerate(arranged.parts, start=1):
        report = judge(part, budget)
        yield Judged(
            str(path), table.format, name, number if several else 0, _used(table, log), len(part),
            int(part.steps.min()), int(part.steps.max()), report, (*notes, *report.notes),
        )  # fmt: skip


def _used(table: LogTable, log: SeriesLog) -> dict[str, str | None]:
    names = table.columns.as_dict()
    return {
        role: name if role not in ROLES or getattr(log, role) is not None else None
        for role, name in names.items()
    }


def _missing(log: SeriesLog) -> Iterator[str]:
    """What a reader may believe to have been judged, and was not."""
    if log.grad_norm is None:
        yield "no grad norm in these rows: loss only"
    if log.loss is None:
        yield "no loss in these rows: grad norm only"
    if log.loss is None or log.grad_norm is None:
        return
    for name, column in (("loss", log.loss), ("grad norm", log.grad_norm)):
        yield from _holes(name, column)


def _holes(name: str, column: Column) -> Iterator[str]:
    without = int((~column.given).sum())
    if without:
        yield f"no {name} in {without:,} of {len(column.given):,} rows: missing, not zero"
