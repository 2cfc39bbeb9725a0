"""`sdc-bisect seal`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import EXIT_ARCHIVE_INCOMPLETE

from ..locations import only_local
from .answering import progress
from .place import PLACE

_GUARD = "sdc-guard"


@click.command("seal")
@click.argument("path", type=PLACE)
@click.option("--again", is_flag=True, help="Replace seals that are there already.")
@json_option
def seal_command(path: Path, again: bool, as_json: bool) -> None:
    """Write down what the files of each checkpoint in PATH are now, for `scan` to prove later.

    Beside each checkpoint it leaves NAME.sdc-seal.json with the size and xxh3-128 of its files
    and a digest of each tensor, so that a later scan names the tensors that changed; the files
    themselves are not touched. Tensors with NaN are sealed and told. A seal says nothing of what
    happened before it was written, and it shows accidents, not forgery. The archive of
    `guard.checkpoint` has manifests already. What cannot be read, or is damaged by its own
    checksums, is not sealed.

    \b
    Exit codes: 0 all are sealed, 2 usage, 5 something was not, or no checkpoint is there.

    \b
    Examples:
      sdc-bisect seal checkpoints
      sdc-bisect scan checkpoints
    """
    from ..index import index
    from ..passed_over import passed_over
    from ..sealing import sealed

    only_local(
        path,
        "a seal is written beside the files, and nothing is written",
        "seal the checkpoints before they are copied there: the seals are read there, too",
    )
    found = index(path)
    rows = [sealed(one, again) for one in found if one.format != _GUARD]
    for line in passed_over(path, found):
        progress(line)
    if as_json:
        click.echo(json_text("sdc-bisect.seal", checkpoints=[row.as_dict() for row in rows]))
    else:
        say(*[f"{row.step:>10}  {row.what}" for row in rows] or ["nothing to seal"])
    sys.exit(0 if all(row.done for row in rows) else EXIT_ARCHIVE_INCOMPLETE)
