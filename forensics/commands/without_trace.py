"""`sdc-bisect run` on archives that no guard recorded: weaker judges, and what they cannot see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sdc_guard.errors import (
    EXIT_RANGE_ONLY,
    ArchiveIncomplete,
    ArchiveUnreachable,
    Interrupted,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sdc_guard.store.trace_reader import TraceReader

    from ..checkpoint import Checkpoint
    from ..executors.executor import Executor
    from ..in_turn import InTurn
    from ..oracles.judgement import Oracle
    from ..result import Result
    from ..search.asked import Asked
    from ..sessions.state import Stage

JUDGES: Final = ("integrity", "consistency", "statistics")
_ONLY_BYTES: Final = (
    "by checksums: that the training was sound before it was saved is not looked at "
    "(--oracle statistics)"
)
_NO_NAMES: Final = "the names in .metadata have no checksum: what of them is wrong is not seen"
_ONLY_VALUES: Final = "a statistic suspects and does not prove; small faults it does not see"


def judge_of(
    name: str, candidates: Sequence[Checkpoint], asked: Asked, trace: TraceReader | None = None
) -> Oracle:
    """The judge of that name.

    Raises:
        UsageError: chance is to have a part, and it says the same each time.
    """
    from ..oracles.consistency import ConsistencyOracle
    from ..oracles.integrity import IntegrityOracle
    from ..oracles.statistics import StatisticsOracle

    if asked.by_chance:
        raise UsageError(
            "it says the same of a checkpoint each time: --noisy and --repeat are for a command",
            next_step="sdc-bisect run ARCHIVE --noisy -- python check.py {ckpt}",
        )
    if name in ("integrity", "auto"):
        return IntegrityOracle()
    if name == "consistency":
        return ConsistencyOracle(candidates, trace)
    return StatisticsOracle(candidates)


def is_without_trace(run: Path, oracle: str) -> bool:
    """Whether a path is no run that a guard recorded: it is judged all the same.

    Whether it is there, and has checkpoints, `index` says.
    """
    from ..readers.listing import is_file

    return oracle not in ("trace", "shadow") and not is_file(run / "run.json")


def judged_in_turn(turns: InTurn, executor: Executor) -> Result:
    """Search by what proves and is cheap first: checksums, then the values.

    Raises:
        ArchiveIncomplete: neither can judge any of them.
    """
    from ..damage_first import damage_first
    from ..oracles.integrity import IntegrityOracle
    from ..oracles.statistics import StatisticsOracle
    from ..oracles.whole_files import WholeFiles
    from ..result import Result
    from ..sessions.state import Stage

    candidates = turns.search.candidates
    names = _names_unproven(candidates)
    judge = IntegrityOracle()
    found: Stage | Result
    looked_at: frozenset[Path] = frozenset()
    # what is read in vain is large: whether there are checksums at all is seen at both ends
    begun = turns.said_by(judge)
    if not begun and (unproven := _ends_unproven(candidates)):
        found = Stage(judge.name, said=(f"not proven: {unproven}",))
    else:
        found = turns.before(judge, executor)
        if isinstance(found, Stage):
            looked_at = _paths_of(found, turns)
    if isinstance(found, Result):
        if found.first_corrupt is not None:
            answer = _with_values(found, turns, executor)
            return replace(answer, evidence=(*answer.evidence, *names))
        said = (_bytes_fit(found, candidates), *names)
        looked_at = _paths(candidates, _steps_judged(found, judge.name))
        found = Stage(judge.name, found.last_clean, None, said, found.skipped)
    stage = turns.over(found)
    statistics = WholeFiles(StatisticsOracle(candidates), looked_at)
    suspected = turns.judged(statistics, executor)
    suspected = damage_first(suspected)
    probes = (*suspected.probes, *statistics.probes())
    said = (*suspected.evidence, *stage.said, _ONLY_VALUES)
    answer = replace(suspected, evidence=said, probes=probes)
    return _with_unread(answer, candidates, stage.skipped)


def _paths_of(stage: Stage, turns: InTurn) -> frozenset[Path]:
    """What checksums judged in a search that goes on: all but the steps it could not."""
    left = {*stage.skipped}
    if stage.low is None or turns.search.asked.trust_ends or turns.others_judged(*JUDGES):
        return frozenset()  # nobody knows which
    return frozenset(one.path for one in turns.search.candidates if one.step not in left)


def _steps_judged(result: Result, judge: str) -> tuple[int, ...]:
    """Steps that the search has a verdict of, by that judge."""
    told = (one for one in result.probes if one["oracle"] == judge)
    return tuple(one["step"] for one in told if one["verdict"] != "untestable")


def _paths(candidates: Sequence[Checkpoint], steps: Iterable[int]) -> frozenset[Path]:
    """The checkpoints of these steps.

    Where several are of one step none is, unless the step is there once for each.
    """
    there, told = Counter(one.step for one in candidates), Counter(steps)
    return frozenset(one.path for one in candidates if told[one.step] >= there[one.step])


def _with_values(proven: Result, turns: InTurn, executor: Executor) -> Result:
    """A damaged file says nothing of the training: look at the values of the others, too.

    Up to an end that is damaged, and in the mirror, what is damaged is all that was asked for. The
    session's journal keeps nothing of it, for its question is answered; the result does. Of what
    looks sound the bytes of the newest are read, too: that one is to restore from. What the user
    and others judged is of the state, and counts there alone.
    """
    from ..oracles.statistics import StatisticsOracle
    from ..oracles.whole_files import WholeFiles
    from ..values_besides import with_values

    candidates, asked = turns.search.candidates, turns.search.asked
    if turns.live is not None:
        asked = turns.live.state.asked
    damaged = {*proven.damaged_files}
    bounded = asked.first_good or asked.good is not None or asked.bad in damaged
    if bounded and not turns.others_judged(*JUDGES):
        return replace(proven, evidence=(*proven.evidence, _ONLY_BYTES))
    others = replace(asked, skip=tuple({*asked.skip, *damaged}))
    sound = [one for one in candidates if one.step not in damaged]  # those to compare with
    looked_at = _paths(candidates, _steps_judged(proven, "integrity"))
    judge = WholeFiles(StatisticsOracle(sound), looked_at)
    try:
        values = turns.of_state(judge, executor, others)
    except ArchiveUnreachable:
        raise  # the session goes on from what checksums said
    except Interrupted as stopped:
        raise _values_again(stopped, turns) from None
    except (ArchiveIncomplete, UsageError) as error:
        return replace(proven, evidence=(*proven.evidence, f"of values nothing: {error.what}"))
    answer = with_values(proven, values, asked.scan)
    answer = replace(answer, probes=(*answer.probes, *judge.probes()))
    told = (one["step"] for one in proven.probes if one["oracle"] == "integrity")
    read = _paths(candidates, told) | judge.read()
    answer, read = _with_newest_read(answer, turns, read)
    return replace(answer, evidence=(*answer.evidence, *_not_read(read, candidates)))


def _values_again(stopped: Interrupted, turns: InTurn) -> Interrupted:
    """Ctrl-C while the values were looked at, of which nothing is kept: what is kept anyway."""
    again = "run it again"
    if turns.live is not None:
        again = (
            "the same command looks at the values again; what checksums said is kept in "
            f"{turns.live.folder}"
        )
    return Interrupted(f"the values of the others: {stopped.what}", next_step=again)


def _not_read(read: frozenset[Path], candidates: Sequence[Checkpoint]) -> tuple[str, ...]:
    """That files were not read, any of which may be damaged, too."""
    left = [one for one in candidates if one.readable and one.path not in read]
    if not left:
        return ()
    files = "1 file was" if len(left) == 1 else f"{len(left):,} files were"
    return (f"{files} not compared with their checksums, and may be damaged, too: --scan does",)


def _with_newest_read(
    answer: Result, turns: InTurn, read: frozenset[Path]
) -> tuple[Result, frozenset[Path]]:
    """Checksums of the newest checkpoint before the state's break, and of older damaged ones.

    Args:
        answer, turns: so far.
        read: paths of those whose bytes were read; with those read here, too, it is returned.
    """
    from ..locations import still_there
    from ..oracles.integrity import IntegrityOracle

    state, judge = answer.state, IntegrityOracle()
    last = None if state is None else state.last_clean
    if last is None:
        return answer, read
    wrong = {one["step"] for one in answer.probes if one["verdict"] == "corrupt"}
    before = [one for one in turns.search.candidates if one.readable and one.step <= last]
    settled: int | None = None
    for one in reversed(before):
        if one.step in wrong:
            continue
        if settled is not None and one.step != settled:
            break
        if one.path in read:
            settled = one.step  # others of this step are read, too
            continue
        found = judge.judge(one)
        still_there(one.path)
        read |= {one.path}
        turns.tell(f"step {one.step}: {found.verdict}, {found.reason}")
        probe = {"step": one.step, "verdict": found.verdict, "reason": found.reason}
        answer = replace(answer, probes=(*answer.probes, {**probe, "oracle": judge.name}))
        if not found.stored_bytes:
            settled = one.step
            continue
        damaged = tuple(sorted({*answer.damaged_files, one.step}))
        said = f"damaged, too: the file of checkpoint {one.step}: {found.reason}"
        answer = replace(answer, damaged_files=damaged, evidence=(*answer.evidence, said))
    return answer, read


def _bytes_fit(found: Result, candidates: Sequence[Checkpoint]) -> str:
    """How many of the checkpoints have sound bytes."""
    fit = {one["step"] for one in found.probes if one["verdict"] == "clean"}
    count = (
        f"all {len(candidates):,}"
        if len(fit) == len(candidates)
        else (f"{len(fit):,} of {len(candidates):,}")
    )
    return f"the bytes of {count} checkpoints fit their checksums"


def _names_unproven(candidates: Sequence[Checkpoint]) -> tuple[str, ...]:
    """That DCP's metadata has no checksum, where there is a checkpoint of it without a seal."""
    from ..readers import dcp
    from ..seal_file import seal_path

    found = any(one.format == dcp.FORMAT and not seal_path(one).exists() for one in candidates)
    return (_NO_NAMES,) if found else ()


def with_limits(result: Result, oracle: str) -> Result:
    """The answer with what a judge that was asked for by name does not see."""
    if oracle != "statistics":
        return result
    return replace(result, evidence=(*result.evidence, _ONLY_VALUES))


def _with_unread(
    result: Result, candidates: Sequence[Checkpoint], skipped: Sequence[int]
) -> Result:
    """Say which checkpoints could not be read, also where the last judge was not asked of them."""
    unread = {one.step for one in candidates if not one.readable} | {*skipped}
    unread -= {
        *_steps_judged(result, "statistics")
    }  # checksums said nothing of them, and their values did
    if not unread - {*result.skipped}:
        return result
    everything = tuple(sorted(unread | {*result.skipped}))
    unsettled = EXIT_RANGE_ONLY if result.unsettled is None else result.unsettled
    return replace(result, skipped=everything, unsettled=unsettled)


def _ends_unproven(candidates: Sequence[Checkpoint]) -> str:
    """Why checksums cannot judge the archive, by its first and last readable checkpoint; or "".

    Where there are several formats the ends say nothing of what lies between them.
    """
    from ..locations import still_there
    from ..oracles.integrity import IntegrityOracle

    readable = [one for one in candidates if one.readable]
    if len({one.format for one in readable}) > 1:
        return ""
    ends = [IntegrityOracle().judge(one) for one in (*readable[:1], *readable[-1:])]
    for one in readable[-1:]:
        still_there(one.path)
    if ends and all(judgement.verdict == "untestable" for judgement in ends):
        return ends[0].reason
    return ""
