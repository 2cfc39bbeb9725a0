"""The command that compares what a run saved with what was recorded of it: verify-archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from .group import json_option, json_text, run_argument, say, while_somebody_reads


@click.command("verify-archive")
@run_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the N newest by step.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=min(4, os.cpu_count() or 1), show_default=True,
    help="Read so many at once.",
)  # fmt: skip
@json_option
def verify_archive(
    run: Path, command: tuple[str, ...], last: int | None, jobs: int, as_json: bool
) -> None:
    """Compare every checkpoint of RUN with what was recorded of it, and ask COMMAND.

    Of its archive, and those that guard.seal sealed elsewhere: all bytes are read again and
    compared with the manifest or the seal, and what was judged then or proven since is told:
    incidents, convictions. Nothing is moved and nothing is deleted.

    COMMAND is run for each whose bytes are right; {ckpt} and {step} are filled in. Exit code 0:
    sound, 1: not, 125: it cannot tell. A last line of output that is a number, or JSON with
    "loss", is a loss; one that is not finite is not sound. What it says is kept in the archive:
    in convictions.jsonl, or in confirmations.jsonl.

    \b
    Exit codes: 0 all are clean, 1 one is corrupt or suspect, 2 usage, 5 one could not be
    compared, or there is none.

    \b
    Examples:
      sdc-guard verify-archive runs/pretrain
      sdc-guard verify-archive runs/pretrain --last 3 --json
      sdc-guard verify-archive runs/pretrain -- python eval.py {ckpt}
    """
    from ..archive.gate import examine, exit_code
    from ..archive.gate_command import ask, check_command, with_answer
    from ..errors import SdcGuardError
    from ..store.incident_spans import incident_spans, shadow_losses
    from ..store.reader import RunReader
    from ..store.run_file import RunFile

    def note(line: str) -> None:
        say(f"sdc-guard: {line}", err=True)

    if command:
        check_command(command)
    RunFile.read(run)  # what is no run is told so
    try:
        with RunReader(run) as reader:
            incidents, losses = incident_spans(reader), shadow_losses(reader)
    except SdcGuardError as error:
        incidents, losses = [], {}
        note(f"incidents are not known: {error}")
    found = examine(run, last=last, jobs=jobs, incidents=incidents)
    if command:
        for at, one in enumerate(found):
            if one.status in ("clean", "suspect", "untested"):
                answer = ask(command, one, losses.get((one.attempt, one.step)))
                found[at] = with_answer(run, one, answer, note)
    code = exit_code(found)
    with while_somebody_reads():
        if as_json:
            rows = [one.as_dict() for one in found]
            click.echo(json_text("sdc-guard.verify-archive", checkpoints=rows, exit_code=code))
        else:
            for one in found:
                why = "; ".join([*one.reasons, *([one.told] if one.told else [])])
                number = "?" if one.step < 0 else str(one.step)
                place = os.path.relpath(one.path, run)
                say(f"{number:>10}  {one.status:<10}  {place}{f': {why}' if why else ''}")
            if not found:
                note(f"no checkpoint in {run}")
    sys.exit(code)
