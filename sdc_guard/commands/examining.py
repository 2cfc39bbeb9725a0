"""The command that looks at the machine before a training: doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .group import folders_alone, json_option, json_text, say


@click.command()
@click.argument(
    "run", type=click.Path(path_type=Path), required=False, default=None, callback=folders_alone
)
@click.option("--quiet", "-q", is_flag=True, help="Leave out what is in order.")
@json_option
def doctor(run: Path | None, quiet: bool, as_json: bool) -> None:
    """Say what on this machine, or in the folder of RUN, stands in the way.

    Packages with names of ours, imports that lead elsewhere, extras that are missing and what
    needs them, versions, the file system and its room, shared memory, clock, threads, devices,
    numba's cache, denormals. It changes nothing. RUN need not be there yet.

    A line is ok, note, warning (works, but not as one may think) or problem (something will fail).

    Exit codes: 0 no problem, also with warnings, 1 a problem, 2 usage.

    \b
    Examples:
      sdc-guard doctor
      sdc-guard doctor runs/pretrain --json
    """
    from ..doctor.command import examine, exit_code
    from ..doctor.finding import OK

    found = examine(run)
    code = exit_code(found)
    if as_json:
        content = [one.as_object() for one in found]
        click.echo(json_text("sdc-guard.doctor", findings=content, exit_code=code))
    else:
        say(*(one.line() for one in found if not (quiet and one.level == OK)))
    sys.exit(code)
