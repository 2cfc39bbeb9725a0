"""`sdc-bisect run`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import UsageError

from .answering import progress, tell_result
from .opening import attempt_option, command_argument, of_lineage, opened, run_argument
from .search_options import OF_THE_SEARCH, SearchOptions, search_options
from .session_place import session_option
from .without_trace import JUDGES, is_without_trace, judge_of, judged_in_turn, with_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdc_guard.store.trace_reader import TraceReader

    from ..checkpoint import Checkpoint
    from ..executors.executor import Executor
    from ..oracles.judgement import Oracle
    from ..prediction import Predicted
    from ..search.asked import Asked
    from ..sessions.standing import Standing


@click.command("run")
@run_argument
@command_argument
@click.option(
    "--oracle",
    type=click.Choice(["auto", "trace", "shadow", *JUDGES]),
    default="auto",
    show_default=True,
    help="Who judges; auto is the trace, or without one integrity and then statistics. "
    "With a COMMAND: who bisects first, and the COMMAND judges both ends of its bracket.",
)
@click.option(
    "--pass-urls", is_flag=True, help="Of an archive behind a URL {ckpt} is the URL, not a copy."
)
@search_options
@attempt_option
@session_option
@json_option
def run_command(
    run: Path,
    command: tuple[str, ...],
    oracle: str,
    pass_urls: bool,
    attempt: int | None,
    named: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Bisect the checkpoints of RUN to the first corrupt one.

    With a COMMAND after `--`, it judges each checkpoint: exit code 0 is clean, 1 corrupt, 125
    cannot be tested. Anything else, a Python traceback too, is a crash: it is run once more, and
    a second crash stops the search (with --noisy and --repeat it cannot be tested). {ckpt} and
    {step} are filled in. RUN may then be any folder of checkpoints.

    Without a COMMAND --oracle says who judges. trace: exact comparison with the run's own record.
    shadow: the recorded shadow loss. Of archives that no guard recorded, too: integrity compares
    bytes with checksums and proves; consistency and statistics look for contradictions and for
    values that no training leaves, and suspect.

    Both ends are judged first, then each checkpoint at most once: of n, log2(n) + 2 rounded up, and
    one more for each that cannot be tested. It is assumed that what is corrupt stays corrupt;
    --scan assumes nothing and judges all.

    Every judging is kept: after Ctrl-C, or worse, the same command goes on. In a session that
    `start` began it judges what is left, with the session's options, and the session stays open;
    without one it begins one and ends it with the answer. See `start` for where they are kept.

    A judge that errs: --noisy asks where the answer tells most, until one checkpoint is the first
    corrupt one with the --confidence asked for. One that says the same of a checkpoint each time
    is not asked twice, and the answer is a range, mostly. A judge that fails by chance at corrupt
    checkpoints, and never at clean ones: --repeat N.

    RUN may be a URL, s3://BUCKET/FOLDER. {ckpt} is then a copy on this machine, in $TMPDIR, which
    is removed after the command.

    `exact` in the JSON output says that the bracket holds the first corrupt checkpoint alone:
    none inside of it is missing, untestable or skipped. Further before it some may be, and those
    are told, in `skipped`; `claim` is "first" or, where others before it were not
    judged, "transition"; `watched`, of a judge by the trace, is the share of the state's
    transitions from step to step that were compared. Below 1 "clean" means as far as recorded.
    `verify` names the step.

    A checkpoint whose file cannot be read (truncated, empty, no permission) is no evidence either
    way, and is named with its reason: `unreadable` in the JSON output.

    \b
    Exit codes: 0 nothing is corrupt, 1 the bracket is exact, 2 usage, or
    COMMAND failed, 3 a range only, or nothing corrupt among those judged while one that cannot
    be read or tested may be, or that are suspect since the save, or the run has a proven alert
    about what a step computed, 5 no
    checkpoint, or none that can be judged, 130 Ctrl-C.

    \b
    Examples:
      sdc-bisect run runs/pretrain
      sdc-bisect run archive --skip 250,300 -- python check.py {ckpt}
      sdc-bisect run archive --jobs 4 -- python check.py {ckpt}
      sdc-bisect run archive --oracle statistics -- python expensive.py {ckpt}
      sdc-bisect run archive --noisy --false-positive 0.05 -- python check.py {ckpt}
      sdc-bisect run archive --repeat 10 -- python check.py {ckpt}
      sdc-bisect run archive --dry-run --cost 90 -- python check.py {ckpt}
    """
    from ..executors.local import Local
    from ..in_turn import InTurn, confirmed
    from ..index import index
    from ..missing import with_record
    from ..oracles.command import CommandOracle
    from ..oracles.statistics import StatisticsOracle
    from ..passed_over import passed_over
    from ..sessions.home import Home, is_guarded
    from ..sessions.of_run import Search

    typed = SearchOptions(**options)
    asked = typed.asked()
    cheap: Oracle | None = None
    weakly = is_without_trace(run, oracle) and (not command or oracle in JUDGES)
    in_turn = weakly and oracle == "auto"
    with contextlib.ExitStack() as stack:
        reader = None
        if not weakly and (not command or is_guarded(run) or oracle in ("trace", "shadow")):
            reader = stack.enter_context(opened(run, attempt))
        candidates = index(run) if reader is None else of_lineage(reader, attempt)
        for line in passed_over(run, candidates):
            progress(line)
        judge = _command_less(oracle, reader, asked, candidates, command)
        if command:
            cheap = judge
            judge = CommandOracle(
                command, skip_crashes=asked.by_chance, cost=typed.cost, pass_urls=pass_urls
            )
        assert judge is not None  # without a command there is one of ours
        name = (_name(judge, cheap, in_turn), *command)
        search = Search(
            Home.of(run, named),
            asked,
            attempt,
            name,
            _typed(click.get_current_context()),
            candidates,
        )
        if typed.dry_run:
            after = StatisticsOracle(candidates) if in_turn else None
            _tell_prediction(search.planned(), (cheap, judge, after), typed, as_json)
            return
        executor = _executor(judge, typed, stack)
        live, part = stack.enter_context(search.session(progress))
        turns = InTurn(search, live, part, progress)
        if in_turn:
            result = judged_in_turn(turns, executor)
        elif cheap is not None:
            near = Local(typed.jobs) if cheap.concurrent else Local()
            result = confirmed(turns, cheap, near, judge, executor)
        else:
            result = turns.judged(judge, executor)
        if reader is not None:
            result = with_record(reader, result, candidates)
        if not command:
            result = with_limits(result, oracle)
        tell_result(result, as_json)
        if live is not None:  # after the answer, which is known whatever becomes of the file
            search.done(live, result)
    sys.exit(result.exit_code)


def _typed(context: click.Context) -> tuple[str, ...]:
    """The options about what is searched that were given."""
    return tuple(
        option.opts[0]
        for option in context.command.params
        if option.name in OF_THE_SEARCH
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    )


def _recorded_oracle(
    name: str, reader: TraceReader, asked: Asked, candidates: Sequence[Checkpoint]
) -> Oracle:
    from ..oracles.shadow import ShadowOracle
    from ..oracles.trace import TraceOracle

    if asked.by_chance:
        raise UsageError(
            "what was recorded says the same each time: --noisy and --repeat are for a command",
            next_step="sdc-bisect run RUN --noisy -- python check.py {ckpt}",
        )
    if name in JUDGES:
        return judge_of(name, candidates, asked, reader)
    return ShadowOracle(reader) if name == "shadow" else TraceOracle(reader)


def _command_less(
    name: str,
    reader: TraceReader | None,
    asked: Asked,
    candidates: Sequence[Checkpoint],
    command: tuple[str, ...],
) -> Oracle | None:
    """The judge that needs no command; None where there is one, and no other was asked for."""
    if command and name == "auto":
        return None
    if reader is None or (command and name in JUDGES):
        return judge_of(name, candidates, asked, reader)
    return _recorded_oracle(name, reader, asked, candidates)


def _name(judge: Oracle, cheap: Oracle | None, in_turn: bool) -> str:
    """Who judges, as a session is told apart by it."""
    if in_turn:
        return "auto"
    return judge.name if cheap is None else f"{cheap.name}+{judge.name}"


def _executor(judge: Oracle, typed: SearchOptions, stack: contextlib.ExitStack) -> Executor:
    from ..executors.local import Local
    from ..oracles.command import CommandOracle

    if not isinstance(judge, CommandOracle):
        if judge.concurrent:
            if typed.executor != "local":
                progress(
                    f"{judge.name} judges on this machine, {typed.jobs} at once: "
                    f"--executor {typed.executor} is for a command"
                )
            return Local(typed.jobs)
        if typed.jobs > 1 or typed.executor != "local":
            progress("what was recorded is read one checkpoint at a time: --jobs is for a command")
        return Local()
    if typed.executor == "ray":
        from ..executors.on_ray import OnRay

        return stack.enter_context(OnRay(typed.jobs))
    return Local(typed.jobs, judge.stop)


def _tell_prediction(
    part: Standing,
    judges: tuple[Oracle | None, Oracle, Oracle | None],
    typed: SearchOptions,
    as_json: bool,
) -> None:
    """Say what each of them would judge.

    Args:
        part: what is known.
        judges: one that goes first, the one that is asked for, and one that goes on where that
            one finds nothing.
    """
    from ..prediction import predicted_of

    cheap, judge, after = judges
    several = cheap is not None or after is not None

    def of(one: Oracle) -> Predicted:
        known = [
            (place, judgement.verdict)
            for place, judgement, by in part.known
            if by == one.name or not several
        ]
        jobs = typed.jobs if one.concurrent else 1
        return predicted_of(part.part, known, one, part.asked, jobs)

    found = of(judge)
    before = None if cheap is None else of(cheap)
    then = None if after is None else of(after)
    if as_json:
        more = {
            name: {"oracle": one.name, **said.as_dict()}
            for name, one, said in (("before", cheap, before), ("then", after, then))
            if one is not None and said is not None
        }
        click.echo(json_text("sdc-bisect.run-plan", **found.as_dict(), **more))
        return
    lines = found.lines()
    if cheap is not None and before is not None:
        ends = f"{judge.name}: 2 judgings if it agrees with {cheap.name}; if it finds nothing, or"
        lines = [f"first {cheap.name}", *before.lines(), f"{ends} they disagree:", *lines]
    if after is not None and then is not None:
        lines = [f"first {judge.name}", *lines, f"where that finds nothing, {after.name}"]
        lines += then.lines()[1:]
    say(*lines)
