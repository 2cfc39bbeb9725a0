"""Commands that judge what others wrote: check-log, and strikes of a ledger."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import UsageError
from .group import json_option, json_text, while_somebody_reads


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--clear",
    metavar="DEVICE",
    help="What came before does not count any more. The beginning of its name is enough.",
)
@click.option("--because", help="Why, for whoever reads the ledger.")
@json_option
def strikes(file: Path, clear: str | None, because: str | None, as_json: bool) -> None:
    """List the devices of the ledger FILE, with their strikes and what to do.

    A ledger is what Guard(ledger=FILE) writes to. Exit code 1 if a device is to be excluded.
    """
    from ..detect.strikes import HEADING, named, standings
    from ..ledger import Ledger, read_ledger

    if because is not None and clear is None:
        raise UsageError("--because without --clear", next_step="--clear names the device")
    entries, _ = read_ledger(file)
    if clear is not None:
        matching = named(clear, entries)
        if len(matching) != 1:
            what = f"{len(matching)} devices begin with" if matching else "no device"
            raise UsageError(
                f"{what} {clear}", where=str(file), next_step="strikes FILE lists them"
            )
        try:
            Ledger(file).clear(matching[0], because or "")
        except OSError as error:
            raise UsageError(
                f"it cannot be written: {error.strerror or error}",
                where=str(file),
                next_step="clear the device where the ledger can be written",
            ) from None
    entries, damaged = read_ledger(file)
    found = standings(entries)
    if as_json:
        content = [one.as_object() for one in found]
        click.echo(json_text("sdc-guard.strikes", devices=content, damaged_lines=damaged))
    else:
        click.echo(HEADING if found else f"nothing in {file} yet")
        for one in found:
            click.echo(one.line())
        if damaged:
            click.echo(f"sdc-guard: {damaged} damaged lines of {file} are passed over", err=True)
    sys.exit(1 if any(one.out for one in found) else 0)


@click.command("check-log")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option(
    "--budget", type=float, default=1e-4, show_default=True,
    help="False incidents a row that are accepted.",
)  # fmt: skip
@click.option("--loss", metavar="COLUMN", help="The loss; found by its name otherwise.")
@click.option("--grad-norm", metavar="COLUMN", help="The norm of the gradient; likewise.")
@click.option("--step", metavar="COLUMN", help="The number of the step; likewise.")
@click.option("--run", metavar="NAME", help="Of several runs in a file only this one.")
@json_option
def check_log(
    files: tuple[str, ...], budget: float, loss: str | None, grad_norm: str | None,
    step: str | None, run: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Judge loss and gradient norm in a log that no guard wrote.

    FILE is a trainer_state.json of Hugging Face, CSV or the like, JSON lines, an event file of
    TensorBoard or a folder of them; gzip is unpacked. Restarts are told and are no incidents.

    Exit code: 0 no incident, 1 incidents, 2 a file cannot be read and there is no incident.

    \b
    Examples:
      sdc-guard check-log checkpoint-8000/trainer_state.json
      sdc-guard check-log history.csv --loss "train/ce" --json
      sdc-guard check-log tensorboard/ --run seed-3
    """
    from ..logs.columns import Asked
    from ..logs.command import check
    from ..logs.words import told

    if "" in files:  # as a path it would be the folder that we are in
        raise UsageError("an empty name of a file", next_step="give the file of a log")
    checked = check([Path(file) for file in files], Asked(loss, grad_norm, step), run, budget)
    with while_somebody_reads():
        if as_json:
            click.echo(json_text("sdc-guard.check-log", **checked.as_object(budget)))
        else:
            for line in told(checked.logs):
                click.echo(line)
    for error in checked.errors:
        click.echo(f"sdc-guard: {error}", err=True)
    sys.exit(checked.exit_code)
