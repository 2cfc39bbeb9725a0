"""What an answer rests on, and what it does not know: sentences for its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from .checkpoint import Checkpoint
from .oracles.judgement import Oracle
from .search import Found
from .search.asked import Asked
from .search.mirrored import other
from .search.verdicts import Verdict
from .span import Span
from .watched import percent

_MOST: Final = 10  # steps in a sentence
_OPEN: Final = re.compile(r"incident open since step (\d{1,18})\b")  # as a guard seals it
_REPLICAS: Final = "replica_digest"  # the detector's name
WRONG_VALUES: Final = "a step that computes wrong values changes no bit between two steps"
EVERY_STEP: Final = "a replay compares every step"
FROM_BEFORE: Final = "from a checkpoint before"
BETWEEN_COMPARISONS: Final = "ranks are compared every so many steps"


def of_trust(part: Span, steps: Sequence[int]) -> list[str]:
    """That ends were not judged."""
    if not part.trusted:
        return []
    ends = ", ".join(f"{steps[place]} {verdict}" for place, verdict in sorted(part.trusted.items()))
    return [f"the ends were trusted, not verified: {ends}"]


def of_order(
    found: Found, steps: Sequence[int], claim: str | None, oracle: Oracle, asked: Asked
) -> list[str]:
    """What is assumed of the order, or known against it."""
    before: Verdict = "corrupt" if asked.first_good else "clean"
    after = other(before)
    if found.first_corrupt is None:
        judged = len({place for place, _ in found.probes})
        known = judged == len(steps) or oracle.persists or asked.by_chance or asked.scan
        if known or found.last_clean is None or judged < 2:
            return []
        return [
            f"what was {after} and became {before} again between them is not seen: "
            "--scan judges every one"
        ]
    if found.last_clean is None and found.stable:
        first = steps[found.first_corrupt]
        only = "the only one there is" if len(steps) == 1 else "the first one searched"
        lines = [f"checkpoint {first}, {only}, is {after} already: it began there or before"]
    else:
        lines = []
    if found.later_clean:
        again = steps[found.later_clean[0]]
        text = f"not monotone: checkpoint {again} is {before}, after one that is {after}"
        if claim == "transition":
            text += ": a transition, not the first" + "; --scan lists every one" * (not asked.scan)
        return [*lines, text]
    unread = found.first_corrupt - sum(place < found.first_corrupt for place in found.verdicts)
    if claim == "first" and oracle.proves and unread and not asked.scan:
        checkpoints = "1 checkpoint" if unread == 1 else f"{unread} checkpoints"
        lines.append(f"the bytes of {checkpoints} before it were not read; --scan reads them, too")
    if claim == "transition" and found.stable and asked.scan:
        lines.append("not every one before it could be judged: one of those may be the first")
    elif claim == "transition" and found.stable:
        lines.append(
            f"not every checkpoint before it was judged: that what is {after} stays {after} is "
            "assumed, --scan assumes nothing"
        )
    return lines


def of_chance(found: Found, steps: Sequence[int], asked: Asked) -> list[str]:
    """How an oracle that answers by chance answered."""
    if asked.noise is not None:
        return _probabilities(found, steps)
    if asked.repeat == 1:
        return []
    runs = Counter(place for place, verdict in found.probes if verdict != "untestable")
    failed = Counter(place for place, verdict in found.probes if verdict == "corrupt")
    judged = sorted(runs)
    places = [found.last_clean, found.first_corrupt] if found.stable else [judged[0], judged[-1]]
    rates = [
        f"step {steps[place]} failed {failed[place]} of {runs[place]} runs"
        for place in dict.fromkeys(places)
        if place is not None
    ]
    if found.stable:
        return rates
    return [f"no stable boundary, the judge fails by chance: {', '.join(rates)}"]


def _probabilities(found: Found, steps: Sequence[int]) -> list[str]:
    likely = ", ".join(
        f"{'none' if place is None else f'step {steps[place]}'} {percent(probability)}"
        for place, probability in found.likely
    )
    count = len(found.probes)
    return [
        f"after {count} answers that may be wrong, the first corrupt one is most likely: {likely}"
    ]


def of_watching(watched: float | None, low: int | None, high: int | None) -> list[str]:
    """That the trace recorded a part of the state only."""
    if watched is None or watched >= 1:
        return []
    upto = f"{percent(watched)} of the state's transitions up to step"
    if high is None:
        return [f"as far as recorded: {upto} {low} were compared; {EVERY_STEP}"]
    clean = "the steps before it" if low is None else f"checkpoint {low}"
    return [f"{clean} may hide an earlier fault: {upto} {high} were compared"]


def of_suspects(
    candidates: Sequence[Checkpoint],
    suspect: Sequence[Checkpoint],
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
    said = f"{count} suspect: step {steps} {_why(first)}"
    if len(doubted) > 1:
        said = f"{count} suspect: steps {steps}; that of step {first.step} {_why(first)}"
    if not oracle.proves:
        return [said]
    before = _before(candidates, doubted)
    start = f"from step {before[-1]} to step {first.step}" if before else FROM_BEFORE
    lines = [
        said,
        f"{WRONG_VALUES}, so this search does not see it: a replay {start} runs them again and "
        "compares",
    ]
    if any(_REPLICAS in reason for reason in first.reasons):
        lines.append(
            f"{BETWEEN_COMPARISONS}: they may have gone apart before the step that is named; where "
            "that replay finds nothing, begin at an earlier checkpoint"
        )
    return lines


def to_replay(
    candidates: Sequence[Checkpoint], first_corrupt: int | None
) -> tuple[int, int] | None:
    """From which checkpoint to which step a replay shows what suspect ones hold; None: no such.

    Args:
        candidates: by step.
        first_corrupt: step of the checkpoint that was found; those before it are meant.
    """
    doubted = [
        one
        for one in candidates
        if one.status == "suspect" and (first_corrupt is None or one.step < first_corrupt)
    ]
    before = _before(candidates, doubted)
    return (before[-1], doubted[0].step) if before else None


def _before(candidates: Sequence[Checkpoint], doubted: Sequence[Checkpoint]) -> list[int]:
    """Steps of the checkpoints before what is doubted began."""
    opened = min((_opened(one) for one in doubted), default=-1)
    whole = [one for one in candidates if one.readable and one.resumable]
    return [one.step for one in whole if one.step < opened]


def _opened(suspect: Checkpoint) -> int:
    """The step since which an incident was open, else its own.

    A checkpoint of that very step, or of one shortly before, may have been saved before it opened.
    """
    found = [int(step) for reason in suspect.reasons for step in _OPEN.findall(reason)]
    return min([suspect.step, *found])


def _why(suspect: Checkpoint) -> str:
    reasons = "; ".join(filter(None, suspect.reasons))
    return f"because: {reasons}" if reasons else "without a reason in its manifest"
