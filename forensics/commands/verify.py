"""`sdc-bisect verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from sdc_guard.commands.group import json_option
from sdc_guard.errors import Interrupted, UsageError

from .answering import answer, progress
from .numbers import STEP
from .opening import attempt_option, command_argument, of_lineage, opened, run_argument
from .session_place import session_option


@click.command("verify")
@run_argument
@command_argument
@click.option("--recorded", is_flag=True, help="Use the resume command recorded in run.json.")
@click.option("--from", "start", type=STEP, help="Replay from the checkpoint of this step.")
@click.option("--to", "until", type=STEP, help="Replay up to this step (last checkpoint).")
@click.option(
    "--losses",
    type=click.Path(path_type=Path),
    metavar="LOG",
    help="No guard recorded RUN: compare with its log of losses (trainer_state.json, CSV, JSONL).",
)
@click.option(
    "--replay-log", metavar="NAME", help="With --losses: the log that a replay writes into {run}."
)
@click.option("--fresh", is_flag=True, help="Do not go on with an interrupted verification.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replay though there is no room for copies of the checkpoints it may write over.",
)
@attempt_option
@session_option
@json_option
def verify_command(
    run: Path,
    command: tuple[str, ...],
    recorded: bool,
    start: int | None,
    until: int | None,
    attempt: int | None,
    losses: Path | None,
    replay_log: str | None,
    fresh: bool,
    overwrite: bool,
    named: Path | None,
    as_json: bool,
) -> None:
    """Replay RUN from its last clean checkpoint and name the first step that differs.

    COMMAND, after `--`, resumes the training script: {ckpt} is the checkpoint, {step} the last
    step to run, {run} a folder for what the replay writes. The guard in the script records into
    the session by itself. Without --from the interval is the bracket that `run` found last, or
    else the one that the trace shows; where ranks differ, from the last comparison in which they
    were equal.

    `exact` in the JSON output says that the fault happened at `first_corrupt`; else it lies after
    `last_clean` and not after `first_corrupt`. `watched` is the share of the replayed digests
    that the run had recorded, too.

    What is proven is noted beside the checkpoints, which load_checkpoint(RUN) passes over then.
    A verification that was interrupted goes on where it was. Where COMMAND does not name {run},
    checkpoints are copied first, and put back if the replay writes over them.

    With --losses RUN is any folder of checkpoints, and a replay is recorded by a guard in the
    script or writes a log of its own. A loss shows that a step went wrong by then, not when.

    \b
    Exit codes: 0 nothing differs, 1 the first step is known, 2 usage, or COMMAND failed,
    3 a range only, 4 not reproducible, 5 archive incomplete, 130 Ctrl-C.

    \b
    Examples:
      sdc-bisect verify runs/pretrain -- python train.py --resume {ckpt} --until {step}
      sdc-bisect verify runs/pretrain --recorded --from 2000 --to 3000
      sdc-bisect verify runs/ddp -- torchrun --nproc-per-node 8 train.py --resume {ckpt} \\
        --until {step}
      sdc-bisect verify out --losses out/checkpoint-900/trainer_state.json --from 600 \\
        -- python train.py --resume {ckpt} --until {step} --output {run}
    """
    if losses is not None:
        _by_losses(run, command, losses, replay_log, start, until, fresh, named, as_json)
        return
    if replay_log is not None:
        raise UsageError("--replay-log needs --losses", next_step="--losses the run's own log")
    from ..replay import given_command
    from ..sessions.home import Home
    from ..unfinished import put_back_left
    from ..verifying import Asked, Verification

    with opened(run, attempt) as reader:
        resume = given_command(command, recorded, reader.run_file.resume)
        asked = Asked(start, until, attempt, fresh, named, overwrite)
        home = Home.of(Path(reader.run), named)  # before checkpoints are looked at
        put_back_left(home.folder, len(reader.run_file.attempts), progress)
        plan = Verification.of(reader, of_lineage(reader, attempt), asked, progress)
    with _resumable():
        result = plan.result(resume, progress)
    answer(result, as_json)


@contextmanager
def _resumable() -> Iterator[None]:
    """Ctrl-C is no answer: Python's exit code for it would say that corruption was located."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped while replaying; what was replayed is kept",
            next_step="the same command goes on from there",
        ) from None


def _by_losses(
    path: Path,
    command: tuple[str, ...],
    losses: Path,
    replay_log: str | None,
    start: int | None,
    until: int | None,
    fresh: bool,
    named: Path | None,
    as_json: bool,
) -> None:
    from ..foreign_losses import read_losses
    from ..index import index
    from ..interval import asked
    from ..loss_verify import LossVerifier, default_start
    from ..replay import given_command
    from ..sessions.home import Home
    from ..unfinished import session_for

    resume = given_command(command, False, None)
    told = read_losses(losses)
    logged, notes = told.losses, told.notes
    candidates = index(path)
    begin = default_start(candidates, start)
    interval = asked(candidates, begin, until, max(logged, default=None))
    inputs = {
        **resume.inputs(),
        "losses": [str(losses.resolve()), losses.stat().st_size, losses.stat().st_mtime_ns],
        "from": begin,
        "to": interval.until,
    }
    if named is not None:  # there may be others' in it
        inputs["run"] = str(path.resolve())
    home = Home.of(path if path.is_dir() else path.parent, named)
    home.make()
    with _resumable(), session_for(home.folder, inputs, progress, fresh=fresh) as session:
        verifier = LossVerifier(logged, notes, resume, session, progress, replay_log)
        result = verifier.verify(interval.start, interval.until, interval.earlier, interval.after)
        session.finish(result.as_dict())
    answer(result, as_json)
