"""The interface between what plans a search and what carries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .verdicts import Found, Verdict


class Planner(Protocol):
    """A search that is asked what to judge, and told what came out.

    It is asked for a round of places; each of them is told before it is asked again. So whoever
    judges them may do so in any order, at once, or on other machines.
    """

    @property
    def stage(self) -> int:
        """Which of the oracles judges the round that was asked for: 0 unless there are several."""
        ...

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """Up to `count` places to judge next; () when the search is over.

        The same place comes twice only in searches that repeat on purpose.
        """
        ...

    def tell(self, place: int, verdict: Verdict) -> None:
        """What the judging of a place came to."""
        ...

    def found(self) -> Found:
        """What is known by now; the answer once `ask` says that the search is over."""
        ...

    def remaining(self, jobs: int = 1) -> int:
        """About how many rounds of up to `jobs` judgings are left."""
        ...


def drive(planner: Planner, judge: Callable[[int], Verdict], jobs: int = 1) -> Found:
    """Carry out a search in this thread, in rounds of up to `jobs` places."""
    while places := planner.ask(jobs):
        for place in places:
            planner.tell(place, judge(place))
    return planner.found()
