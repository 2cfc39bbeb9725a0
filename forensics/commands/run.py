"""`sdc-bisect run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdc_guard.commands.group import json_option, json_text
from sdc_guard.errors import EXIT_RANGE_ONLY, UsageError

from .answering import answer, progress
from .opening import attempt_option, command_argument, of_lineage, opened, run_argument
from .search_options import SearchOptions, search_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdc_guard.store.trace_reader import TraceReader

    from ..checkpoint import Checkpoint
    from ..executors.executor import Executor
    from ..journal import Session
    from ..oracles.judgement import Oracle
    from ..result import Result
    from ..search.asked import Asked


@click.command("run")
@run_argument
@command_argument
@click.option(
    "--oracle",
    type=click.Choice(["trace", "shadow"]),
    default="trace",
    show_default=True,
    help="Judge by exact comparison with the trace, or by the recorded shadow loss.",
)
@search_options
@attempt_option
@json_option
def run_command(
    run: Path,
    command: tuple[str, ...],
    oracle: str,
    attempt: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Bisect the checkpoints of RUN to the first corrupt one.

    With a COMMAND after `--`, it judges each checkpoint: exit code 0 is clean, 1 corrupt, 125
    cannot be tested. Anything else, a Python traceback too, is a crash: it is run once more, and
    a second crash stops the search (with --noisy and --repeat it cannot be tested). {ckpt} and
    {step} are filled in. RUN may then be any folder of checkpoints.

    Both ends are judged first, then each checkpoint at most once: ⌈log2 n⌉ + 2 judgings of n, and
    one more for each that cannot be tested. It is assumed that what is corrupt stays corrupt;
    --scan assumes nothing and judges all.

    A judge that errs: --noisy asks where the answer tells most, until one checkpoint is the first
    corrupt one with the --confidence asked for, or a range is. A judge that fails by chance at
    corrupt checkpoints, and never at clean ones: --repeat N.

    `exact` in the JSON output says that the first corrupt checkpoint is known, with none
    missing or untestable before it; `claim` is "first" or, where others before it were not
    judged, "transition"; `watched`, of a judge by the trace, is the share of the state's
    transitions from step to step that were compared. Below 1 "clean" means as far as recorded.
    `verify` names the step.

    \b
    Examples:
      sdc-bisect run runs/pretrain
      sdc-bisect run archive --skip 250,300 -- python check.py {ckpt}
      sdc-bisect run archive --jobs 4 -- python check.py {ckpt}
      sdc-bisect run archive --noisy --false-positive 0.05 -- python check.py {ckpt}
      sdc-bisect run archive --repeat 10 -- python check.py {ckpt}
      sdc-bisect run archive --dry-run --cost 90 -- python check.py {ckpt}
    """
    from ..index import index
    from ..journal import Session
    from ..oracles.command import CommandOracle

    typed = SearchOptions(**options)
    asked = typed.asked()
    judge: Oracle
    if command and not (run / "run.json").is_file():
        judge = CommandOracle(command, skip_crashes=asked.by_chance, cost=typed.cost)
        candidates = index(run)
        if typed.dry_run:
            _tell_prediction(candidates, judge, asked, typed, as_json)
            return
        answer(_search(candidates, judge, None, asked, typed), as_json)
        return
    with opened(run, attempt) as reader:
        if command:
            judge = CommandOracle(command, skip_crashes=asked.by_chance, cost=typed.cost)
        else:
            judge = _recorded_oracle(oracle, reader, asked)
        candidates = of_lineage(reader, attempt)
        if typed.dry_run:
            _tell_prediction(candidates, judge, asked, typed, as_json)
            return
        session = Session.new(run)
        result = _search(candidates, judge, session, asked, typed)
        result = _with_later_break(reader, result)
        attempts = len(reader.run_file.attempts)
        session.finish({**result.as_dict(), "attempts": attempts, "attempt": attempt})
    answer(result, as_json)


def _recorded_oracle(name: str, reader: TraceReader, asked: Asked) -> Oracle:
    from ..oracles.shadow import ShadowOracle
    from ..oracles.trace import TraceOracle

    if asked.by_chance:
        raise UsageError(
            "what was recorded says the same each time: --noisy and --repeat are for a command",
            next_step="sdc-bisect run RUN --noisy -- python check.py {ckpt}",
        )
    return ShadowOracle(reader) if name == "shadow" else TraceOracle(reader)


def _search(
    candidates: Sequence[Checkpoint],
    judge: Oracle,
    session: Session | None,
    asked: Asked,
    typed: SearchOptions,
) -> Result:
    from ..bracket import find_bracket

    return find_bracket(candidates, judge, session, progress, asked, _executor(judge, typed))


def _executor(judge: Oracle, typed: SearchOptions) -> Executor:
    from ..executors.local import Local
    from ..oracles.command import CommandOracle

    if not isinstance(judge, CommandOracle):
        if typed.jobs > 1 or typed.executor != "local":
            progress("what was recorded is read one checkpoint at a time: --jobs is for a command")
        return Local()
    if typed.executor == "ray":
        from ..executors.on_ray import OnRay

        return OnRay(typed.jobs)
    return Local(typed.jobs, judge.stop)


def _with_later_break(reader: TraceReader, result: Result) -> Result:
    """Say so if the trace proves a change after the newest clean checkpoint."""
    from ..chain import breaks

    if result.first_good or result.first_corrupt is not None:
        return result
    later = [row for row in breaks(reader) if row[0] > (result.last_clean or 0)]
    if not later:
        return result
    step, kind, name = later[0]
    text = f"after it, {kind} {name} changed between step {step - 1} and step {step}: see verify"
    return replace(result, evidence=(*result.evidence, text), unsettled=EXIT_RANGE_ONLY)


def _tell_prediction(
    candidates: Sequence[Checkpoint],
    judge: Oracle,
    asked: Asked,
    typed: SearchOptions,
    as_json: bool,
) -> None:
    from ..prediction import predicted

    found = predicted(candidates, judge, asked, typed.jobs if judge.concurrent else 1)
    if as_json:
        click.echo(json_text("sdc-bisect.run-plan", **found.as_dict()))
    else:
        click.echo("\n".join(found.lines()))
