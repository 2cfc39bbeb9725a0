"""Statuses as text: a table for people, lines for logs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .status import RunStatus

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "run", "state", "step", "steps/s", "loss", "alerts", "open", "missing", "ranks", "newest alert"
)  # fmt: skip
_NUMBERS = {"step", "steps/s", "loss", "alerts", "open", "missing", "ranks"}
_URGENCY = {"damaged": 0, "silent": 1, "recording": 2, "waiting": 3, "ended": 4}


def urgent_first(statuses: Iterable[RunStatus]) -> list[RunStatus]:
    """Open incidents first, then what cannot be read or has gone silent."""
    return sorted(statuses, key=lambda s: (s.open_incidents == 0, _URGENCY[s.state]))


def names(statuses: Sequence[RunStatus]) -> dict[str, str]:
    """Folder to what is shown for it: the part in which the folders differ."""
    folders = [status.run for status in statuses]
    above = os.path.commonpath([Path(folder).parent for folder in folders]) if folders else ""
    return {folder: printable(os.path.relpath(folder, above)) for folder in folders}


def cells(status: RunStatus, name: str, now: float) -> list[str]:
    """A row of the table, in the order of COLUMNS."""
    ranks = f"{status.ranks}/{status.world_size}" if status.world_size > 1 else str(status.ranks)
    known = status.problem == ""
    return [
        name,
        state_text(status, now),
        "" if status.last_step is None else f"{status.last_step:,}",
        "" if status.steps_per_second is None else f"{status.steps_per_second:.3g}",
        "" if status.loss is None else f"{status.loss:.5g}",
        f"{status.alert_count:,}" if known else "",
        f"{status.open_incidents:,}" if known else "",
        f"{status.missing_steps:,}" if known else "",
        ranks if known else "",
        printable(status.newest_alert or status.problem),
    ]


def state_text(status: RunStatus, now: float) -> str:
    """The state, with its duration or its damage."""
    text: str = status.state
    if status.state == "silent" and status.newest is not None:
        text = f"silent for {duration(now - status.newest)}"
    if status.damaged_files:
        text += f", {status.damaged_files:,} damaged"
    return text


def duration(seconds: float) -> str:
    """`40 s`, `5 min`, `3 h`, `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{math.floor(seconds / length):,} {unit}"
    return f"{max(seconds, 0):.0f} s"


def plain_table(statuses: Sequence[RunStatus], now: float) -> list[str]:
    """Lines with the columns aligned by spaces."""
    named = names(statuses)
    rows = [list(COLUMNS), *(cells(status, named[status.run], now) for status in statuses)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
            for cell, width, column in zip(row, widths, COLUMNS, strict=True)
        ).rstrip()
        for row in rows
    ]


def rich_table(statuses: Sequence[RunStatus], now: float) -> Table:
    """The same for rich, with what needs attention in colour."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in COLUMNS:
        number, long = column in _NUMBERS, column == "newest alert"
        table.add_column(
            column,
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if long else None,
        )
    named = names(statuses)
    for status in statuses:
        row = cells(status, named[status.run], now)
        # as Text: a name with brackets is no mark-up
        table.add_row(*(Text(cell) for cell in row), style=_style(status))
    return table


def news(before: RunStatus | None, status: RunStatus, now: float) -> str | None:
    """A line for a log if there is more to tell of a run than its progress."""
    if before is not None and _told(before) == _told(status):
        return None
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now))
    step = "" if status.last_step is None else f", step {status.last_step}"
    line = f"{moment} {printable(status.run)}: {state_text(status, now)}{step}"
    if status.problem:
        return f"{line}: {printable(status.problem)}"
    line += f", {status.alert_count:,} alerts, {status.open_incidents:,} open incidents"
    if status.missing_steps:
        line += f", {status.missing_steps:,} steps missing"
    return f"{line}; {printable(status.newest_alert)}" if status.newest_alert else line


def printable(text: str) -> str:
    """One line that cannot move the cursor: names and messages come from the run's files."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _told(status: RunStatus) -> tuple[object, ...]:
    return (
        status.state, status.problem, status.alerts, status.open_incidents, status.newest_alert,
        status.missing_steps, status.ranks, status.damaged_files,
    )  # fmt: skip


def _style(status: RunStatus) -> str:
    if status.open_incidents or status.state == "damaged":
        return "red"
    if status.state == "silent" or status.missing_steps or status.damaged_files:
        return "yellow"
    return "dim" if status.state in ("ended", "waiting") else ""
