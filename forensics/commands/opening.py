"""What the commands are given: a run's folder, its trace, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import say
from sdc_guard.errors import UsageError
from sdc_guard.lake.location import is_lake, without_password

from ..locations import is_url, location
from .numbers import STEP
from .place import PLACE

if TYPE_CHECKING:
    from sdc_guard.store.trace_reader import TraceReader

    from ..checkpoint import Checkpoint


def _folder(_: click.Context, __: click.Parameter, value: Path) -> Path:
    if is_lake(value):
        raise UsageError(
            "checkpoints, and what is replayed from them, lie in a run's folder",
            where=without_password(str(value)),
            next_step="give the folder; of a run in a lake there is sdc-bisect report",
        )
    return value


run_argument = click.argument("run", type=PLACE, callback=_folder)
command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED)
attempt_option = click.option(
    "--attempt", type=STEP, help="Look at the run as it was during this attempt (newest)."
)


def opened(run: str | Path, attempt: int | None) -> TraceReader:
    """A reader of a run's trace; what is damaged is told."""
    from sdc_guard.store.opening import open_run

    if is_url(str(run)):
        raise UsageError(
            "a run's trace is not read behind a URL",
            where=str(location(str(run))),
            next_step="copy the run, or give its archive's URL to judge the checkpoints alone",
        )

    reader = open_run(run, attempt)
    for path, reason in reader.damaged.items():
        say(f"sdc-bisect: damaged, its rows are missing: {path} ({reason})", err=True)
    return reader


def of_lineage(reader: TraceReader, attempt: int | None) -> list[Checkpoint]:
    """The checkpoints of the attempts that count; how many others there are is told."""
    from sdc_guard.store.reader import lineage

    from ..index import in_lineage, index

    found = index(reader.run)
    kept = in_lineage(found, lineage(reader.run_file.attempts, attempt))
    if len(kept) < len(found):
        left = len(found) - len(kept)
        click.echo(f"sdc-bisect: {left} checkpoints of superseded attempts left out", err=True)
    return kept
