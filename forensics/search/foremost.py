"""Some places first: the bracket that a cheaper oracle found, for one that may confirm it."""

from __future__ import annotations

from collections.abc import Sequence

from .planner import Planner
from .verdicts import Found, Verdict


class Foremost:
    """A search that judges some places before it goes on as it would.

    A bracket that holds takes two judgings: its ends are neighbours, and nothing is left to ask.
    Where one of them is judged otherwise the search goes on from what was said of it.

    Args:
        planner: the search.
        places: to judge first, in that order.
        told: those that were judged before.
    """

    def __init__(self, planner: Planner, places: Sequence[int], told: Sequence[int] = ()) -> None:
        self._planner = planner
        self._left = [place for place in places if place not in told]

    @property
    def stage(self) -> int:
        """That of the search."""
        return self._planner.stage

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """Those that come first, then what the search asks for."""
        return tuple(self._left[:count]) or self._planner.ask(count)

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict."""
        self._left = [left for left in self._left if left != place]
        self._planner.tell(place, verdict)

    def found(self) -> Found:
        """As the search."""
        return self._planner.found()

    def remaining(self, jobs: int = 1) -> int:
        """Those that come first; if they agree there is no more."""
        if self._left:
            return -(-len(self._left) // jobs)
        return self._planner.remaining(jobs)
