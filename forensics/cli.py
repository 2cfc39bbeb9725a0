"""The command `sdc-bisect`.

torch and duckdb are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import OneLineErrors, json_option, json_text
from sdc_guard.errors import (
    EXIT_ARCHIVE_INCOMPLETE,
    EXIT_RANGE_ONLY,
    EXIT_USAGE,
    ArchiveIncomplete,
    UsageError,
)
from sdc_guard.lake.location import is_lake

from .commands.answering import answer, progress
from .commands.diff import diff_command
from .commands.doctor import doctor_command
from .commands.opening import (
    attempt_option,
    command_argument,
    of_lineage,
    opened,
    run_argument,
)
from .commands.run import run_command
from .commands.scan import scan_command
from .commands.seal import seal_command
from .commands.session_begin import replay_command, reset_command, start_command
from .commands.session_judge import bad_command, good_command, skip_command, undo_command
from .commands.session_told import log_command, status_command

if TYPE_CHECKING:
    from sdc_guard.store.trace_reader import TraceReader

    from .checkpoint import Checkpoint
    from .interval import Interval
    from .replay import ResumeCommand
    from .result import Result


@click.group(
    "sdc-bisect", cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="sdc-guard-torch")
def main() -> None:
    """Find the first corrupted step of a training run.

    \b
    Exit codes: 0 clean or done, 1 corruption located, 2 usage or input, 3 a range only,
    4 not reproducible, 5 archive incomplete, 130 stopped by Ctrl-C.

    \b
    Examples:
      sdc-bisect index runs/pretrain
      sdc-bisect scan runs/pretrain
      sdc-bisect diff step-100.pt step-200.pt
      sdc-bisect run runs/pretrain
      sdc-bisect run runs/pretrain -- python check.py {ckpt}
      sdc-bisect start archive --good 1000 --bad 9000
      sdc-bisect good archive 5000
      sdc-bisect verify runs/pretrain -- python train.py --resume {ckpt} --until {step}
      sdc-bisect report runs/pretrain -o report.md
    """


for command in (
    scan_command,
    diff_command,
    seal_command,
    doctor_command,
    run_command,
    start_command,
    good_command,
    bad_command,
    skip_command,
    undo_command,
    status_command,
    log_command,
    replay_command,
    reset_command,
):
    main.add_command(command)


@main.command("index")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def index_command(path: Path, as_json: bool) -> None:
    """List the checkpoints in PATH by step, with their status.

    PATH is a run's folder, an archive, a folder of checkpoints, or one checkpoint. Steps are
    compared as numbers; the one that a checkpoint holds counts before the one in its name. No
    tensors are read here; `scan` judges the bytes.

    Below the list it says where checkpoints seem to be missing, and which step has several.
    """
    from .index import index
    from .index_text import index_lines
    from .spacing import duplicates, gaps

    found = index(path)
    remarks = [*gaps([checkpoint.step for checkpoint in found]), *duplicates(found)]
    if as_json:
        rows = [checkpoint.as_dict() for checkpoint in found]
        click.echo(json_text("sdc-bisect.index", checkpoints=rows, remarks=remarks))
    else:
        click.echo("\n".join([*index_lines(found), *remarks]))
    unreadable = [str(checkpoint.step) for checkpoint in found if not checkpoint.readable]
    if unreadable:
        click.echo(f"sdc-bisect: cannot be judged: step {', '.join(unreadable)}", err=True)
        sys.exit(EXIT_ARCHIVE_INCOMPLETE)


@main.command("verify")
@run_argument
@command_argument
@click.option("--recorded", is_flag=True, help="Use the resume command recorded in run.json.")
@click.option("--from", "start", type=int, help="Replay from the checkpoint of this step.")
@click.option("--to", "until", type=int, help="Replay up to this step (last checkpoint).")
@attempt_option
@json_option
def verify_command(
    run: Path,
    command: tuple[str, ...],
    recorded: bool,
    start: int | None,
    until: int | None,
    attempt: int | None,
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
    from .bracket import find_bracket
    from .interval import asked
    from .journal import Session
    from .oracles.trace import TraceOracle
    from .recorded import last_recorded
    from .result import STORED_BYTES
    from .storage import storage_result
    from .verify import Verifier
    from .watched import Watch

    with opened(run, attempt) as reader:
        resume = _resume(reader, command, recorded)
        candidates = of_lineage(reader, attempt)
        if start is None:
            if until is not None:
                raise UsageError("--to needs --from", next_step="--from the step of a checkpoint")
            bracket, interval = _bracket(reader, candidates, attempt)
        else:
            interval = asked(candidates, start, until, last_recorded(reader))
            bracket = find_bracket([interval.start], TraceOracle(reader), None, progress)
        if interval is None:
            progress("nothing was replayed; --from STEP replays from that checkpoint all the same")
            answer(bracket, as_json)
            return
        watched = Watch(reader).watched(interval.start.step).share
        attempts = len(reader.run_file.attempts)
    session = Session.new(run)
    verifier = Verifier(run, attempt, resume, session, progress)
    result = verifier.verify(interval.start, interval.until, interval.earlier)
    if start is not None and bracket.first_corrupt is not None:
        condition = f"on condition that checkpoint {start} is right, and it is not: "
        result = replace(
            result,
            evidence=(condition + bracket.evidence[0], *result.evidence),
            unsettled=EXIT_RANGE_ONLY,
        )
    elif bracket.kind == STORED_BYTES and result.first_corrupt is None:
        corrupt = [item for item in candidates if item.step == bracket.first_corrupt]
        if not corrupt:
            raise ArchiveIncomplete(f"checkpoint {bracket.first_corrupt} is gone")
        result = storage_result(corrupt[-1], interval.start.step, result)
    if watched < 1:
        result = _on_condition(result, interval.start.step, watched)
    session.finish({**result.as_dict(), "attempts": attempts, "attempt": attempt})
    answer(result, as_json)


@main.command("report")
@click.argument("run")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file, too.")
@json_option
def report_command(run: str, output: Path | None, as_json: bool) -> None:
    """Report what was recorded of RUN and found in it, as Markdown or JSON.

    RUN is a folder, or ducklake:CATALOG?run=NAME for a run that was uploaded: its checkpoints
    and sessions are not there.
    """
    from .index import index
    from .journal import Session
    from .report import markdown

    with opened(run, None) as reader:
        found = [] if is_lake(run) else index(Path(run))
        results = [r for session in Session.all(reader.run) if (r := session.result())]
        if as_json:
            rows = [checkpoint.as_dict() for checkpoint in found]
            name = reader.run_file.name
            text = json_text("sdc-bisect.report", run=name, checkpoints=rows, results=results)
        else:
            text = markdown(reader, found, results)
    click.echo(text)
    if output is not None:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:  # stdout has the report: with --json one object, and no second
            what = f"the report cannot be written ({error.strerror})"
            click.echo(f"sdc-bisect: {UsageError(what, where=str(output))}", err=True)
            sys.exit(EXIT_USAGE)


def _on_condition(result: Result, start: int, watched: float) -> Result:
    """Say on what the answer of a replay rests where the state before it was watched in part."""
    from .watched import percent

    share = f"{percent(watched)} of the state's transitions up to it were compared"
    text = f"on condition that checkpoint {start} is right: {share}"
    return replace(result, evidence=(*result.evidence, text))


def _bracket(
    reader: TraceReader, candidates: Sequence[Checkpoint], attempt: int | None
) -> tuple[Result, Interval | None]:
    """The bracket to replay: the one found last, else the one that the trace shows."""
    from .bracket import find_bracket
    from .chain import breaks
    from .interval import asked, from_bracket, newest_bracket
    from .journal import Session
    from .oracles.trace import TraceOracle
    from .recorded import from_trace
    from .result import Result
    from .sessions.open_bracket import open_bracket

    attempts = len(reader.run_file.attempts)
    known = newest_bracket(Session.all(reader.run), attempts, attempt)
    if (current := open_bracket(reader.run, candidates, attempt)) is not None:
        progress(f"the open session's bracket: ({current.last_clean}, {current.first_corrupt}]")
        result = current
    elif known is not None:
        progress(f"the bracket that run found: ({known['last_clean']}, {known['first_corrupt']}]")
        result = Result.of_bracket(known)
    else:
        result = find_bracket(candidates, TraceOracle(reader), None, progress)
    if result.last_clean is None and (proven := from_trace(reader)) is not None:
        return proven, None
    if result.first_corrupt is not None:
        return result, from_bracket(candidates, result.last_clean, result.first_corrupt)
    # the training may have ended after the corruption and before its next checkpoint
    later = [step for step, _, _ in breaks(reader) if step > (result.last_clean or 0)]
    if later and result.last_clean is not None:
        return result, asked(candidates, result.last_clean, later[0])
    return result, None


def _resume(reader: TraceReader, command: tuple[str, ...], recorded: bool) -> ResumeCommand:
    from .replay import ResumeCommand

    known = reader.run_file.resume
    if command and recorded:
        raise UsageError("give either --recorded or a command after --, not both")
    if command:
        return ResumeCommand(command)
    if recorded and known:
        return ResumeCommand.parse(known)
    hint = "this run recorded none" if not known else f"--recorded runs what it recorded: {known}"
    raise UsageError(
        "how is the training resumed?",
        next_step=f"sdc-bisect verify RUN -- python train.py --resume {{ckpt}} ...; {hint}",
    )


if __name__ == "__main__":
    main(prog_name="sdc-bisect")
