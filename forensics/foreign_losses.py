"""Loss and gradient norm of each step from a log that another program wrote.

Printed in full, they are as good as a fingerprint of the step: what a replay is held against where
no guard recorded the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sdc_guard.detect.series_log import Column, SeriesLog
from sdc_guard.errors import LogUnreadable, UsageError
from sdc_guard.logs.columns import Asked
from sdc_guard.logs.order import arrange
from sdc_guard.logs.reading import read_log

Losses = Mapping[int, tuple[float | None, float | None]]
"""Step to loss and gradient norm, None for what was not logged; bit-exact as the log has them."""

_ANYTHING: Final = Asked()
_FEW_DECIMALS: Final = 6  # so few round a float32 of the size of a loss


@dataclass(frozen=True)
class ForeignLosses:
    """What a log says.

    Attributes:
        writers: one mapping for each process that wrote the log; one where only one did.
        notes: what has to be known before comparing with them: several writers, steps that come
            again, rounding, rows that are means of several steps.
    """

    writers: tuple[Losses, ...]
    notes: tuple[str, ...]

    @property
    def losses(self) -> Losses:
        """Those of the only writer.

        Raises:
            LogUnreadable: several processes wrote the log: which of them is meant?
        """
        count = len(self.writers)
        if count > 1:
            raise LogUnreadable(
                f"Duplicate steps: {'two' if count == 2 else count} writers",
                next_step="choose one of the writers; nothing says which is the run's",
            )
        return self.writers[0]


def read_losses(path: Path, asked: Asked = _ANYTHING, run: str | None = None) -> ForeignLosses:
    """Read a trainer_state.json, CSV, JSON lines or event file.

    Where a step comes again after a restart, the later row counts, as its weights do.

    Args:
        path: the file, or a folder with one.
        asked: columns that the user named.
        run: which of the runs in it; only needed where there are several.

    Raises:
        LogUnreadable: it is no log, or damaged.
        UsageError: it is not there, or which run or column is meant cannot be told.
    """
    tables = read_log(path, asked)
    runs = {name: (table, rows) for table in tables for name, rows in table.runs.items()}
    if run is None and len(runs) > 1:
        listed = ", ".join(list(runs)[:12])
        raise UsageError(f"several runs: {listed}", where=str(path), next_step="name one")
    if run is not None and run not in runs:
        raise UsageError(f"no run {run!r} in it", where=str(path))
    table, rows = runs[run] if run is not None else next(iter(runs.values()))
    log = rows.log()
    arranged = arrange(log)
    notes = [*table.notes, *arranged.notes]
    for part in arranged.parts:
        notes += _again(part)
    return ForeignLosses(
        tuple(_by_step(part) for part in arranged.parts),
        tuple(dict.fromkeys([*notes, *_rounded(log), *_means(log)])),
    )


def _by_step(log: SeriesLog) -> Losses:
    losses, norms = (_cells(column, len(log)) for column in (log.loss, log.grad_norm))
    return dict(zip(log.steps.tolist(), zip(losses, norms, strict=True), strict=True))


def _cells(column: Column | None, count: int) -> list[float | None]:
    if column is None:
        return [None] * count
    cells = zip(column.values.tolist(), column.given.tolist(), strict=True)
    return [value if given else None for value, given in cells]


def _again(log: SeriesLog) -> Iterator[str]:
    again = len(log) - len(np.unique(log.steps))
    if again:
        steps = "1 step comes" if again == 1 else f"{again:,} steps come"
        yield f"{steps} again, as after a restart: the later row counts"


def _rounded(log: SeriesLog) -> Iterator[str]:
    for name, column in (("losses", log.loss), ("gradient norms", log.grad_norm)):
        if column is None:
            continue
        values = column.values[column.finite]
        with np.errstate(over="ignore"):  # a number beyond float32 is none of its numbers
            exact = values.astype(np.float32).astype(np.float64) == values
        if not len(values) or exact.all():
            continue
        few = [
            count
            for count in range(_FEW_DECIMALS + 1)
            if all(round(value, count) == value for value in values.tolist())
        ]
        if few:
            yield f"{name} are rounded to {few[0]} decimals: no smaller difference shows"


def _means(log: SeriesLog) -> Iterator[str]:
    gaps = np.diff(np.unique(log.steps))
    if len(gaps) and gaps.min() > 1:
        yield f"a row every {gaps.min()} steps or more: its loss may be the mean of them"
