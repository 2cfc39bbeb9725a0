"""`sdc-bisect run`: judge checkpoints until the first corrupt one is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from sdc_guard.errors import EXIT_ARCHIVE_INCOMPLETE, ArchiveIncomplete

from .checkpoint import Checkpoint
from .journal import Session
from .oracles.judgement import Judgement, Oracle
from .result import STORED_BYTES, Result
from .search import Found, Verdict, bisect
from .watched import percent

_MOST: Final = 10  # steps in a sentence


def find_bracket(
    candidates: Sequence[Checkpoint],
    oracle: Oracle,
    session: Session | None,
    tell: Callable[[str], None],
) -> Result:
    """Search for the first corrupt checkpoint.

    Args:
        candidates: by step.
        oracle: judges each at most once.
        session: keeps the journal; None when the answer is only needed on the way.
        tell: called with a line per probe.

    Raises:
        ArchiveIncomplete: not one checkpoint can be judged.
    """
    judgements: dict[int, Judgement] = {}

    def judge(place: int) -> Verdict:
        judgement = oracle.judge(candidates[place])
        judgements[place] = judgement
        step = candidates[place].step
        if session is not None:
            session.note("probe", step=step, verdict=judgement.verdict, reason=judgement.reason)
        saved = " (suspect when it was saved)" if candidates[place].status == "suspect" else ""
        tell(f"step {step}: {judgement.verdict}, {judgement.reason}{saved}")
        return judgement.verdict

    found = bisect(len(candidates), judge)
    if oracle.proves and found.first_corrupt is None and found.last_clean is not None:
        # bytes rot singly: that the newest is clean says nothing of the others
        found = _scan(len(candidates), judge, found)
    if found.last_clean is None and found.first_corrupt is None:
        reason = judgements[found.probes[0][0]].reason if found.probes else "there is none"
        raise ArchiveIncomplete(
            f"none of {len(candidates)} checkpoints can be judged: {reason}",
            next_step="see `sdc-bisect index`",
        )
    return _result(candidates, oracle, found, judgements)


def _scan(count: int, judge: Callable[[int], Verdict], found: Found) -> Found:
    """Judge the checkpoints that the bisection left out, up to the first corrupt one."""
    verdicts = dict(found.probes)
    for place in range(count):
        if place not in verdicts:
            verdicts[place] = judge(place)
        if verdicts[place] == "corrupt":
            break
    untestable = tuple(sorted(p for p, v in verdicts.items() if v == "untestable"))
    corrupt = next((p for p in sorted(verdicts) if verdicts[p] == "corrupt"), None)
    if corrupt is None:
        return Found(found.last_clean, None, untestable, tuple(verdicts.items()))
    before = [p for p, v in verdicts.items() if v == "clean" and p < corrupt]
    return Found(max(before, default=None), corrupt, untestable, tuple(verdicts.items()))


def _result(
    candidates: Sequence[Checkpoint],
    oracle: Oracle,
    found: Found,
    judgements: dict[int, Judgement],
) -> Result:
    steps = [checkpoint.step for checkpoint in candidates]
    last_clean = None if found.last_clean is None else steps[found.last_clean]
    first_corrupt = None if found.first_corrupt is None else steps[found.first_corrupt]
    evidence = _gap(steps, last_clean, first_corrupt)
    exact = found.exact and not evidence
    kind = unsettled = None
    if found.first_corrupt is not None:
        judgement = judgements[found.first_corrupt]
        evidence.insert(0, judgement.reason)
        kind = STORED_BYTES if judgement.stored_bytes else None
    elif found.untestable and found.untestable[-1] > (found.last_clean or 0):
        evidence.append(f"the newest cannot be judged: {judgements[found.untestable[-1]].reason}")
        unsettled = EXIT_ARCHIVE_INCOMPLETE
    else:
        evidence.append(f"{len(found.probes)} of {len(candidates)} checkpoints judged")
    watched = _watched(found, judgements)
    if watched is not None and watched < 1:
        evidence.append(_reservation(watched, last_clean, first_corrupt))
    suspect = [checkpoint for checkpoint in candidates if checkpoint.status == "suspect"]
    evidence += _suspicion(candidates, suspect, first_corrupt, oracle)
    return Result(
        command="run",
        last_clean=last_clean,
        first_corrupt=first_corrupt,
        exact=exact,
        proven=oracle.proves and first_corrupt is not None,
        skipped=tuple(steps[place] for place in found.untestable),
        kind=kind,
        verdict="undetermined" if kind else None,
        probes=tuple(
            {"step": steps[place], "verdict": verdict, "reason": judgements[place].reason}
            for place, verdict in found.probes
        ),
        evidence=tuple(evidence),
        unsettled=unsettled,
        watched=watched,
        suspect=tuple({"step": one.step, "reasons": list(one.reasons)} for one in suspect),
    )


def _watched(found: Found, judgements: dict[int, Judgement]) -> float | None:
    """How much was watched up to the checkpoint that the answer rests on."""
    place = found.last_clean if found.first_corrupt is None else found.first_corrupt
    return None if place is None else judgements[place].watched


def _reservation(watched: float, last_clean: int | None, first_corrupt: int | None) -> str:
    upto = f"{percent(watched)} of the state's transitions up to step"
    if first_corrupt is None:
        return (
            f"as far as recorded: {upto} {last_clean} were compared; "
            "sdc-bisect verify --from STEP replays and compares every step"
        )
    clean = "the steps before it" if last_clean is None else f"checkpoint {last_clean}"
    return f"{clean} may hide an earlier fault: {upto} {first_corrupt} were compared"


def _suspicion(
    candidates: Sequence[Checkpoint],
    suspect: list[Checkpoint],
    first_corrupt: int | None,
    oracle: Oracle,
) -> list[str]:
    """What was doubted when it was saved, before what is corrupt, and what would settle it.

    What is computed wrong changes no bit at rest: a judge that compares bits finds nothing.
    """
    doubted = [one for one in suspect if first_corrupt is None or one.step < first_corrupt]
    if not doubted:
        return []
    count = "1 checkpoint is" if len(doubted) == 1 else f"{len(doubted)} checkpoints are"
    steps = ", ".join(str(one.step) for one in doubted[:_MOST]) + ", ..." * (len(doubted) > _MOST)
    first = doubted[0]
    said = (
        f"{count} suspect: {'step' if len(doubted) == 1 else 'steps'} {steps}; "
        f"that of step {first.step} because: {'; '.join(first.reasons)}"
    )
    if not oracle.proves:
        return [said]
    before = [one.step for one in candidates if one.readable and one.step < first.step]
    start = f"--from {before[-1]} --to {first.step}" if before else "from a checkpoint before"
    return [
        said,
        "a step that computes wrong values changes no bit between two steps, so this search does "
        f"not see it: sdc-bisect verify {start} runs them again and compares",
    ]


def _gap(steps: list[int], last_clean: int | None, first_corrupt: int | None) -> list[str]:
    """A line if checkpoints seem to be missing between the two."""
    if last_clean is None or first_corrupt is None:
        return []
    distances = [b - a for a, b in pairwise(steps) if b > a]
    usual = Counter(distances).most_common(1)[0][0]
    # The usual distance says nothing unless it is really usual
    if first_corrupt - last_clean <= usual or distances.count(usual) < 2:
        return []
    return [
        f"no checkpoint between {last_clean} and {first_corrupt}; they are usually {usual} apart"
    ]
