"""`sdc-bisect scan`."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import EXIT_ARCHIVE_INCOMPLETE

from .numbers import JOBS
from .place import PLACE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..scanning import Scanned

_EXIT_FOUND: Final = 1
_SHOWN: Final = 1 << 30  # bytes from which on progress is told


@click.command("scan")
@click.argument("path", type=PLACE)
@click.option(
    "--jobs",
    type=JOBS,
    default=min(4, os.cpu_count() or 1),
    show_default="cores, up to 4",
    metavar="N",
    help="Read N checkpoints at once.",
)
@click.option(
    "--statistics/--no-statistics",
    default=None,
    help="Look at the values of all, or of none (those that no checksum proves).",
)
@json_option
def scan_command(path: Path, jobs: int, statistics: bool | None, as_json: bool) -> None:
    """Read every byte of every checkpoint in PATH, and judge each.

    PATH is a run's folder, an archive, a folder of checkpoints of any format that is read, or one
    checkpoint. It needs no guard: bytes are compared with the checksums of the format, with the
    manifest of a guard's archive, or with the seal that `sdc-bisect seal` left. What no checksum
    proves is compared with its neighbours and with what a training leaves: that suspects, and
    does not prove.

    clean: each tensor fits its checksum; --statistics looks at their values, too. corrupt: bytes
    are not those that were written. suspect: something contradicts it, or it looks unusual.
    untested: there is no checksum, and nothing speaks against it. unreadable: cut off, incomplete,
    or no checkpoint.

    \b
    Exit codes: 1 something is corrupt or suspect, else 5 something cannot be read, or no
    checkpoint is there, else 0; 2 usage.

    \b
    Examples:
      sdc-bisect scan runs/pretrain
      sdc-bisect scan checkpoints --statistics --jobs 8
      sdc-bisect scan checkpoints --json
    """
    from ..archive_remarks import archive_remarks
    from ..index import index
    from ..neighbours import bytes_of
    from ..passed_over import passed_over
    from ..scan_text import not_looked_at, scan_lines
    from ..scanning import not_checkable, scanned

    found = index(path)
    remarks = passed_over(path, found) + archive_remarks(path, found)
    large = sum(bytes_of(one.path) for one in found) >= _SHOWN
    answers = scanned(found, jobs, statistics=statistics, tell=_progress(len(found), large))
    if as_json:
        rows = [one.as_dict() for one in answers]
        told = not_checkable(answers)
        unseen = not_looked_at(answers, values=bool(statistics))
        content = {"checkpoints": rows, "not_checkable": told, "not_looked_at": unseen}
        click.echo(json_text("sdc-bisect.scan", **content, remarks=remarks))
    else:
        say(*scan_lines(answers, values=bool(statistics)), *remarks)
    sys.exit(_exit_code(answers))


def _exit_code(found: Sequence[Scanned]) -> int:
    if any(one.status in ("corrupt", "suspect") for one in found):
        return _EXIT_FOUND
    return 0 if all(one.readable for one in found) else EXIT_ARCHIVE_INCOMPLETE


def _progress(count: int, shown: bool) -> Callable[[Scanned], None]:
    """Tells on stderr how many are done, where there is much to read."""
    done = itertools.count(1)

    def tell(one: Scanned) -> None:
        if shown:
            text = f"  {next(done)} of {count}: step {one.checkpoint.step}, {one.status}"
            click.echo(text, err=True)

    return tell
