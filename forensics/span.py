"""Which of the checkpoints a search is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sdc_guard.errors import UsageError

from .checkpoint import Checkpoint
from .search import Verdict
from .search.asked import Asked

_MOST = 20  # steps in a message


@dataclass(frozen=True)
class Span:
    """The checkpoints between two ends, both included.

    Attributes:
        candidates: by step.
        skipped: places of those that are not to be judged.
        trusted: verdicts of the ends, if they are not to be judged.
        given: verdicts that the user gave the ends, whether trusted or to be verified.
    """

    candidates: Sequence[Checkpoint]
    skipped: tuple[int, ...] = ()
    trusted: Mapping[int, Verdict] = field(default_factory=dict)
    given: Mapping[int, Verdict] = field(default_factory=dict)


def span(candidates: Sequence[Checkpoint], asked: Asked) -> Span:
    """The part of the checkpoints that was asked for.

    Raises:
        UsageError: ends that are swapped or equal, or steps that no checkpoint has.
    """
    start, end = (asked.bad, asked.good) if asked.first_good else (asked.good, asked.bad)
    _in_order(asked)
    steps = [checkpoint.step for checkpoint in candidates]
    for name, step in (("--good", asked.good), ("--bad", asked.bad)):
        if step is not None:
            _known(name, step, steps)
    for step in asked.skip:
        _known("--skip", step, steps)
    low = 0 if start is None else steps.index(start)
    high = len(steps) if end is None else len(steps) - steps[::-1].index(end)
    chosen = candidates[low:high]
    first, last = _ends(asked)
    given: dict[int, Verdict] = {}
    if start is not None:
        given[0] = first
    if end is not None:
        given[len(chosen) - 1] = last
    trusted: dict[int, Verdict] = {}
    if asked.trust_ends:
        if len(chosen) < 2:
            raise UsageError(
                "one checkpoint cannot be both ends", next_step="leave out --trust-ends"
            )
        trusted = {0: first, len(chosen) - 1: last}
    skipped = tuple(
        place for place, one in enumerate(chosen) if one.step in asked.skip and place not in trusted
    )
    return Span(chosen, skipped, trusted, given)


def _ends(asked: Asked) -> tuple[Verdict, Verdict]:
    return ("corrupt", "clean") if asked.first_good else ("clean", "corrupt")


def _in_order(asked: Asked) -> None:
    """Refuse a good and a bad end in the wrong order."""
    good, bad = asked.good, asked.bad
    if good is None or bad is None:
        return
    if good == bad:
        raise UsageError(f"step {good} cannot be both good and bad")
    where = f"--good {good} --bad {bad}"
    if good > bad and not asked.first_good:
        raise UsageError(
            "bad is before good: swapped?",
            where=where,
            next_step=f"--good {bad} --bad {good}; or --first-good, which looks for the first "
            "clean one after a bad one",
        )
    if good < bad and asked.first_good:
        raise UsageError(
            "with --first-good bad comes first, and here good is before bad: swapped?",
            where=where,
            next_step="leave out --first-good to look for the first corrupt one",
        )


def _known(name: str, step: int, steps: Sequence[int]) -> None:
    if step not in steps:
        nearest = sorted(sorted(set(steps), key=lambda known: abs(known - step))[:_MOST])
        there = ", ".join(map(str, nearest)) + ", ..." * (len(set(steps)) > _MOST)
        raise UsageError(
            f"{name} {step}: no checkpoint of that step", next_step=f"there is {there}"
        )
