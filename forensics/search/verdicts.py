"""What is known of the checkpoints, and what follows from it. Places count in order of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Verdict = Literal["clean", "corrupt", "untestable"]
Probe = tuple[int, Verdict]


@dataclass(frozen=True)
class Found:
    """Where a search ended; all are places in the searched order.

    Attributes:
        last_clean: the last clean one before the first corrupt one, or None when none is.
        first_corrupt: the first one that is known to be corrupt, or None when none is.
        untestable: those that could not be judged.
        probes: every judging in its order.
        verdicts: what each place came to, known and trusted ones too; empty where a noisy
            oracle's answers come to none.
        skipped: those that were not to be judged.
        confidence: of a search with a noisy oracle, the probability that the first corrupt one is
            after `last_clean` and not after `first_corrupt`; None of any other search.
        likely: of such a search the most likely places of the first corrupt one, None for "none
            is", with their probabilities.
        undecided: whether such a search leaves open that none is corrupt.
        stable: False when an oracle that answers by chance answers no differently on both sides.
    """

    last_clean: int | None
    first_corrupt: int | None
    untestable: tuple[int, ...]
    probes: tuple[Probe, ...]
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    confidence: float | None = None
    likely: tuple[tuple[int | None, float], ...] = ()
    undecided: bool = False
    stable: bool = True

    @property
    def exact(self) -> bool:
        """Whether nothing untestable or skipped lies between the two."""
        if self.first_corrupt is None:
            return False
        start = -1 if self.last_clean is None else self.last_clean
        return self.first_corrupt == start + 1

    @property
    def later_clean(self) -> tuple[int, ...]:
        """Those judged clean after one that was judged corrupt: not monotone."""
        first = self.first_corrupt
        if first is None:
            return ()
        return tuple(sorted(p for p, one in self.verdicts.items() if one == "clean" and p > first))

    @property
    def all_before_clean(self) -> bool:
        """Whether each one before the first corrupt was judged clean: no assumption is needed."""
        clean = {place for place, verdict in self.verdicts.items() if verdict == "clean"}
        return self.first_corrupt is not None and clean.issuperset(range(self.first_corrupt))


@dataclass(frozen=True)
class Transition:
    """Two judged neighbours, with nothing but untestable ones between, that differ."""

    start: int
    end: int
    verdicts: tuple[Verdict, Verdict]


def transitions(verdicts: Mapping[int, Verdict]) -> tuple[Transition, ...]:
    """Where the verdict changes from one judged place to the next judged one."""
    judged = sorted(place for place, verdict in verdicts.items() if verdict != "untestable")
    return tuple(
        Transition(one, other, (verdicts[one], verdicts[other]))
        for one, other in pairwise(judged)
        if verdicts[one] != verdicts[other]
    )


def found_from(
    verdicts: Mapping[int, Verdict], probes: Iterable[Probe], skipped: Iterable[int] = ()
) -> Found:
    """What the verdicts say: the first that is corrupt, and the last clean one before it."""
    corrupt = min((place for place, one in verdicts.items() if one == "corrupt"), default=None)
    before = (
        place
        for place, one in verdicts.items()
        if one == "clean" and (corrupt is None or place < corrupt)
    )
    return Found(
        last_clean=max(before, default=None),
        first_corrupt=corrupt,
        untestable=tuple(sorted(p for p, one in verdicts.items() if one == "untestable")),
        probes=tuple(probes),
        verdicts=dict(verdicts),
        skipped=tuple(sorted(skipped)),
    )
