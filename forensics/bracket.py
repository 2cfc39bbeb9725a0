"""`sdc-bisect run`: judge checkpoints until the first corrupt one is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from sdc_guard.errors import ArchiveIncomplete

from .checkpoint import Checkpoint
from .journal import Session
from .oracles.judgement import Judgement, Oracle
from .result import Result
from .search import Verdict, bisect


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
        tell(f"step {step}: {judgement.verdict}, {judgement.reason}")
        return judgement.verdict

    found = bisect(len(candidates), judge)
    if found.last_clean is None and found.first_corrupt is None:
        reason = judgements[found.probes[0][0]].reason if found.probes else "there is none"
        raise ArchiveIncomplete(
            f"none of {len(candidates)} checkpoints can be judged: {reason}",
            next_step="see `sdc-bisect index`",
        )
    steps = [checkpoint.step for checkpoint in candidates]
    last_clean = None if found.last_clean is None else steps[found.last_clean]
    first_corrupt = None if found.first_corrupt is None else steps[found.first_corrupt]
    gap = _gap(steps, last_clean, first_corrupt)
    evidence = [judgements[found.first_corrupt].reason] if found.first_corrupt is not None else []
    storage = found.first_corrupt is not None and judgements[found.first_corrupt].storage
    return Result(
        command="run",
        last_clean=last_clean,
        first_corrupt=first_corrupt,
        exact=found.exact and not gap,
        proven=oracle.proves and first_corrupt is not None,
        skipped=tuple(steps[place] for place in found.untestable),
        kind="storage" if storage else None,
        verdict="storage" if storage else None,
        probes=tuple(
            {"step": steps[place], "verdict": verdict, "reason": judgements[place].reason}
            for place, verdict in found.probes
        ),
        evidence=(*evidence, *gap),
    )


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
