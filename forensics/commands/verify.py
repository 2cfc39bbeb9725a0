"""`sdc-bisect verify`."""

from __future__ import annotations

from pathlib import Path

import click

from sdc_guard.commands.group import json_option

from .answering import answer, progress
from .opening import attempt_option, command_argument, of_lineage, opened, run_argument


@click.command("verify")
@run_argument
@command_argument
@click.option("--recorded", is_flag=True, help="Use the resume command recorded in run.json.")
@click.option("--from", "start", type=int, help="Replay from the checkpoint of this step.")
@click.option("--to", "until", type=int, help="Replay up to this step (last checkpoint).")
@click.option("--fresh", is_flag=True, help="Do not go on with an interrupted verification.")
@attempt_option
@json_option
def verify_command(
    run: Path,
    command: tuple[str, ...],
    recorded: bool,
    start: int | None,
    until: int | None,
    attempt: int | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Replay RUN from its last clean checkpoint and name the first step that differs.

    COMMAND, after `--`, resumes the training script: {ckpt} is the checkpoint, {step} the last
    step to run, {run} a folder for what the replay writes. The guard in the script records into
    the session by itself. Without --from the interval is the bracket that `run` found last, or
    else the one that the trace shows.

    `exact` in the JSON output says that the fault happened at `first_corrupt`; else it lies after
    `last_clean` and not after `first_corrupt`. `watched` is the share of the replayed digests
    that the run had recorded, too.
    """
    from ..replay import given_command
    from ..verifying import Asked, Verification

    with opened(run, attempt) as reader:
        resume = given_command(command, recorded, reader.run_file.resume)
        asked = Asked(start, until, attempt, fresh)
        plan = Verification.of(reader, of_lineage(reader, attempt), asked, progress)
    answer(plan.result(resume, progress), as_json)
