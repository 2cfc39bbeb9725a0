"""`sdc-bisect report`: what was recorded, searched and found, to be mailed to others."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import EXIT_USAGE, UsageError

from .answering import progress
from .opening import opened
from .session_place import session_option

if TYPE_CHECKING:
    from ..reporting.facts import Report

_STDOUT: Final = Path("-")
_FORMATS: Final = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}


@click.command("report")
@click.argument("place", metavar="[PATH]", required=False)
@session_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file, too; "
              "its suffix says the format; - is stdout.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["md", "html", "json"]),
              help="Markdown (the default), one HTML page with figures, or JSON.")  # fmt: skip
@json_option
def report_command(
    place: str | None, named: Path | None, output: Path | None, form: str | None, as_json: bool
) -> None:
    """Report what was recorded of PATH, searched and found: Markdown, HTML or JSON.

    PATH is a run's folder, an archive of checkpoints, or ducklake:CATALOG?run=NAME for a run that
    was uploaded: its checkpoints and sessions are not there. Without PATH it is what --session is
    about, or the working directory. The page is one file: it asks no other machine for anything.
    HTML goes to the file alone, unless --format html asks for it on stdout.

    \b
    Exit codes: 0 told, 2 usage, or neither a record nor a checkpoint there, 6 no lake there.

    \b
    Examples:
      sdc-bisect report runs/pretrain
      sdc-bisect report runs/pretrain -o report.html
      sdc-bisect report archive --format json
      sdc-bisect report --session ~/searches/archive -o report.html
    """
    from ..reporting.at_place import written

    output = None if output == _STDOUT else output
    chosen = "json" if as_json else form or _of_suffix(output)
    click.get_current_context().meta["json"] = as_json or chosen == "json"
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} contradict each other")
    text = written(_gathered(place, named), chosen)
    trouble = None if output is None else _write(output, text)
    if trouble is not None and chosen == "json":  # one object, with the report and the error
        text = json_text(None, **json.loads(text), error=trouble.as_dict())
        click.echo(text)
    elif output is None or chosen != "html":
        click.echo(text, nl=False)
    if trouble is not None:
        say(f"sdc-bisect: {trouble}", err=True)
        sys.exit(EXIT_USAGE)


def _of_suffix(output: Path | None) -> str:
    """The format that a file's suffix says; Markdown without a file.

    Raises:
        UsageError: it says none.
    """
    if output is None:
        return "md"
    if (found := _FORMATS.get(output.suffix.lower())) is None:
        raise UsageError(
            "its suffix says no format that is written",
            where=str(output),
            next_step=f"one of {', '.join(_FORMATS)}; or --format md, html or json",
        )
    return found


def _write(output: Path, text: str) -> UsageError | None:
    """Write the file; the error if that fails: the report is told on stdout all the same."""
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"the report cannot be written ({error.strerror})"
        return UsageError(what, where=str(output))
    progress(f"written: {output} ({len(text.encode()) / 1000:,.0f} kB)")
    return None


def _gathered(given: str | None, named: Path | None) -> Report:
    from ..reporting.at_place import report_at

    return report_at(given or _archive_of(named), named, time.time(), opened)


def _archive_of(named: Path | None) -> str:
    """What --session is about; without it the working directory."""
    from ..reporting.sessions_told import named_archive

    if named is None:
        return "."
    archive = named_archive(named)
    if archive is None:
        raise UsageError(
            "no session there says whose it is", where=str(named), next_step="give PATH, too"
        )
    return str(archive)
