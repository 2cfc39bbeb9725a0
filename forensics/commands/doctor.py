"""`sdc-bisect doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from sdc_guard.commands.group import json_option, json_text, say

from ..locations import is_url
from .place import PLACE


@click.command("doctor")
@click.argument("path", type=PLACE)
@json_option
def doctor_command(path: Path, as_json: bool) -> None:
    """Say what can be read in PATH, and what may stand in the way.

    Which formats there are, which packages are missing, whether the file system is this machine's
    own, whether times of modification can be right, and what may not be read or written. It reads
    no tensors and changes nothing. PATH is a run's folder, an archive, a folder of checkpoints, or
    one checkpoint.

    \b
    Exit codes: 0 told, also with warnings, 2 usage, 5 no checkpoint there.

    \b
    Examples:
      sdc-bisect doctor checkpoints
      sdc-bisect doctor runs/pretrain --json
    """
    from ..archive_health import (
        clock_troubles,
        file_system,
        formats,
        is_local,
        missing_packages,
        permission_troubles,
    )
    from ..archive_remarks import archive_remarks
    from ..index import index
    from ..passed_over import passed_over

    found = index(path)
    kind = file_system(path)
    warnings: list[str] = []
    if not is_url(str(path)):
        # behind one times are those of the copying, and to read is the only permission that counts
        warnings = [*clock_troubles(found), *permission_troubles(found), *passed_over(path, found)]
        warnings += archive_remarks(path, found)
    if kind and not is_local(kind):
        warnings.append(f"on {kind}, which may not be this machine's own: reading may be slow")
    told = {"formats": formats(found), "file_system": kind, "missing": missing_packages()}
    if as_json:
        click.echo(json_text("sdc-bisect.doctor", **told, warnings=warnings))
        return
    lines = [*told["formats"], f"file system: {kind or 'not known'}", *told["missing"]]
    say(*lines, *(f"warning: {line}" for line in warnings))
