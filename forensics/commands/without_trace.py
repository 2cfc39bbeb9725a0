"""`sdc-bisect run` on archives that no guard recorded: weaker judges, and what they cannot see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sdc_guard.errors import EXIT_RANGE_ONLY, ArchiveIncomplete, UsageError

from .answering import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sdc_guard.store.trace_reader import TraceReader

    from ..checkpoint import Checkpoint
    from ..oracles.judgement import Oracle
    from ..result import Result
    from ..search.asked import Asked

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
    """Whether a path holds checkpoints that no guard recorded, to be judged all the same."""
    from ..gathered import gathered
    from ..readers.known import READERS

    if oracle in ("trace", "shadow") or (run / "run.json").is_file():
        return False
    return run.exists() and bool(gathered(run, READERS))


def judged_in_turn(candidates: Sequence[Checkpoint], asked: Asked, jobs: int) -> Result:
    """Search by what proves and is cheap first: checksums, then the values.

    Args:
        candidates: by step.
        asked: the search's options.
        jobs: judge so many at once.

    Raises:
        ArchiveIncomplete: neither can judge any of them.
    """
    from ..bracket import find_bracket
    from ..executors.local import Local

    def search(judge: Oracle, asked: Asked = asked) -> Result:
        return find_bracket(candidates, judge, None, progress, asked, Local(jobs))

    proven, unproven = None, _ends_unproven(candidates)
    if not unproven:
        try:
            proven = search(judge_of("integrity", candidates, asked))
        except ArchiveIncomplete as error:
            unproven = error.what.partition(": ")[2]
    if proven is not None and proven.first_corrupt is not None:
        answer = _with_values(proven, search, candidates, asked)
        return replace(answer, evidence=(*answer.evidence, *_names_unproven(candidates)))
    suspected = search(judge_of("statistics", candidates, asked))
    if proven is None:
        said: tuple[str, ...] = (f"not proven: {unproven}",)
    else:
        said = ("the bytes of those judged fit their checksums", *_names_unproven(candidates))
    answer = replace(suspected, evidence=(*suspected.evidence, *said, _ONLY_VALUES))
    return _with_unread(answer, candidates, () if proven is None else proven.skipped)


def _with_values(
    proven: Result,
    search: Callable[[Oracle, Asked], Result],
    candidates: Sequence[Checkpoint],
    asked: Asked,
) -> Result:
    """A damaged file says nothing of the training: look at the values of the others, too.

    Between ends that were given, or in the mirror, what is damaged is all that was asked for.
    """
    if asked.good is not None or asked.bad is not None or asked.first_good:
        return replace(proven, evidence=(*proven.evidence, _ONLY_BYTES))
    others = replace(asked, skip=tuple({*asked.skip, *proven.damaged_files}))
    from ..values_besides import with_values

    try:
        values = search(judge_of("statistics", candidates, asked), others)
    except ArchiveIncomplete as error:
        return replace(proven, evidence=(*proven.evidence, f"of values nothing: {error.what}"))
    return with_values(proven, values)


def _names_unproven(candidates: Sequence[Checkpoint]) -> tuple[str, ...]:
    """That DCP's metadata has no checksum, where there is a checkpoint of it without a seal."""
    from ..readers import dcp
    from ..seals import seal_path

    found = any(one.format == dcp.FORMAT and not seal_path(one).exists() for one in candidates)
    return (_NO_NAMES,) if found else ()


def _with_unread(
    result: Result, candidates: Sequence[Checkpoint], skipped: Sequence[int]
) -> Result:
    """Say which checkpoints could not be read, also where the last judge was not asked of them."""
    unread = {one.step for one in candidates if not one.readable} | {*skipped}
    if not unread - {*result.skipped}:
        return result
    everything = tuple(sorted(unread | {*result.skipped}))
    unsettled = EXIT_RANGE_ONLY if result.unsettled is None else result.unsettled
    return replace(result, skipped=everything, unsettled=unsettled)


def _ends_unproven(candidates: Sequence[Checkpoint]) -> str:
    """Why checksums cannot judge the archive, by its first and last readable checkpoint; or ""."""
    from ..oracles.integrity import IntegrityOracle

    readable = [one for one in candidates if one.readable]
    ends = [IntegrityOracle().judge(one) for one in (*readable[:1], *readable[-1:])]
    if ends and all(judgement.verdict == "untestable" for judgement in ends):
        return ends[0].reason
    return ""
