"""`sdc-bisect run`: judge checkpoints until the first corrupt one is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sdc_guard.errors import ArchiveIncomplete, UsageError

from .checkpoint import Checkpoint
from .executors.executor import Executor
from .executors.local import Local
from .journal import Recorder
from .judging import Judging
from .oracles.judgement import Judgement, Oracle
from .outcome import outcome
from .result import Result
from .search import Found
from .search.asked import Asked
from .search.choose import planner_for
from .search.scan import Scan
from .span import Span, span

KNOWN: Final = "known before"  # in place of the oracle's name


def find_bracket(
    candidates: Sequence[Checkpoint],
    oracle: Oracle,
    session: Recorder | None,
    tell: Callable[[str], None],
    asked: Asked | None = None,
    executor: Executor | None = None,
    confirm: Oracle | None = None,
    known: Mapping[Checkpoint, Judgement] | None = None,
) -> Result:
    """Search for the first corrupt checkpoint.

    Args:
        candidates: by step.
        oracle: judges each at most once, unless it is said to answer by chance.
        session: keeps the journal; None when the answer is only needed on the way.
        tell: called with a line per probe, and with how much is left.
        asked: the search's options.
        executor: of the judgings; by default this thread.
        confirm: an exact and expensive oracle: `oracle` bisects, and this one judges both ends of
            the bracket and goes on from there if it disagrees.
        known: what `oracle` said before, of an interrupted search: it is not asked again. Not for
            one that answers by chance.

    Raises:
        ArchiveIncomplete: not one checkpoint can be judged.
        UsageError: the options do not fit the checkpoints or each other, or an end is not what
            the user says.
        Interrupted: by Ctrl-C.
        CommandFailed: the user's command says nothing that has a meaning.
    """
    asked = asked or Asked()
    part = span(candidates, asked)
    before = [
        (place, (known or {})[one], KNOWN)
        for place, one in enumerate(part.candidates)
        if one in (known or {})
    ]
    return find_bracket_of(part, before, oracle, session, tell, asked, executor, confirm)


def find_bracket_of(
    part: Span,
    known: Sequence[tuple[int, Judgement, str]],
    oracle: Oracle,
    session: Recorder | None,
    tell: Callable[[str], None],
    asked: Asked,
    executor: Executor | None = None,
    confirm: Oracle | None = None,
    first: Sequence[int] = (),
) -> Result:
    """`find_bracket` where something is known already.

    Args:
        part: the checkpoints to search.
        known: places that were judged before, in that order, with the judgements and the names of
            those who judged; they are not judged again.
        first: places to begin with.
        oracle, session, tell, asked, executor, confirm, Raises: as `find_bracket`.
    """
    oracles = [oracle] if confirm is None else [oracle, confirm]
    last = oracles[-1]
    judging = Judging(part.candidates, oracles, session, tell, executor or Local())
    _recall(judging, known, asked)
    count, told = len(part.candidates), [(place, one.verdict) for place, one, _ in known]
    planner = planner_for(
        asked, count, part.skipped, part.trusted, confirm is not None, told, first
    )
    found = judging.go(planner)
    if _may_be_elsewhere(found, last, asked, judging):
        stage = len(oracles) - 1
        scan = Scan(count, part.skipped, found.verdicts, until_corrupt=True, stage=stage)
        found = judging.go(scan)
    if not any(one.verdict != "untestable" for one in judging.judgements.values()):
        raise _nothing_judged(part, judging)
    _check_ends(part, judging, asked)
    probes = tuple((place, judgement.verdict) for place, judgement, _ in judging.probes)
    result = outcome(replace(found, probes=probes), part, judging.judgements, last, asked)
    return replace(result, probes=tuple(_probe(part, *one) for one in judging.probes))


def _recall(judging: Judging, known: Sequence[tuple[int, Judgement, str]], asked: Asked) -> None:
    """Take what is known; of a judge that fails by chance each run when it is asked for."""
    if asked.repeat == 1:
        for place, judgement, by in known:
            judging.recall(place, judgement, by)
        return
    for place, judgement, by in known:
        judging.known.setdefault(place, deque()).append((judgement, by))


def _probe(part: Span, place: int, judgement: Judgement, oracle: str) -> dict[str, object]:
    return {
        "step": part.candidates[place].step,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "oracle": oracle,
    }


def _may_be_elsewhere(found: Found, oracle: Oracle, asked: Asked, judging: Judging) -> bool:
    """Whether others have to be judged before it can be said that none before is corrupt.

    Bytes rot singly: that the newest are sound says nothing of the others, and neither does a
    rotten one.
    """
    if not oracle.proves or asked.by_chance or asked.scan or asked.first_good:
        return False
    if found.first_corrupt is None:
        return found.last_clean is not None
    judgement = judging.judgements.get(found.first_corrupt)
    return judgement is not None and judgement.stored_bytes


def _nothing_judged(part: Span, judging: Judging) -> ArchiveIncomplete:
    reason = next((one.reason for one in judging.judgements.values()), "")
    if not reason:
        reason = "all are skipped" if part.skipped else "there is none"
    if part.trusted:
        reason = f"{reason}; both ends were trusted"
    return ArchiveIncomplete(
        f"none of {len(part.candidates)} checkpoints can be judged: {reason}",
        next_step="see `sdc-bisect index`",
    )


def _check_ends(part: Span, judging: Judging, asked: Asked) -> None:
    """Refuse to answer from an end that is not what the user says it is."""
    if asked.by_chance:
        return
    for place, verdict in part.given.items():
        judgement = judging.judgements.get(place)
        if judgement is None or judgement.verdict in (verdict, "untestable"):
            continue
        step = part.candidates[place].step
        name = "--good" if verdict == "clean" else "--bad"
        raise UsageError(
            f"{name} {step} is {judgement.verdict} by this judge: {judgement.reason}",
            next_step=f"give another {name}, or leave it out to search from the "
            f"{'first' if place == 0 else 'last'} checkpoint",
        )
