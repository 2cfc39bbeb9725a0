"""Unequal costs: a cheap oracle bisects, an exact and expensive one confirms."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from typing import Final

from .binary import Binary
from .verdicts import Found, Verdict

CHEAP: Final = 0
EXACT: Final = 1


class Staged:
    """Binary search with the oracle of stage 0, whose bracket that of stage 1 confirms.

    The exact one judges both ends of the cheap one's bracket. Where it disagrees the search goes
    on with it alone, from what it said: no verdict of the cheap one is kept. A bracket that holds
    takes two expensive judgings. What the cheap one cannot judge the exact one is asked for, too.

    Args:
        count: number of checkpoints.
        skipped: places that are not to be judged.
    """

    def __init__(self, count: int, skipped: Collection[int] = ()) -> None:
        self._cheap = Binary(count, skipped)
        self._exact = Binary(count, skipped)
        self._told_exact: set[int] = set()
        self._over = False

    @property
    def stage(self) -> int:
        """CHEAP until its search is over."""
        return EXACT if self._over else CHEAP

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """The next places for the oracle of `stage`."""
        if not self._over:
            if places := self._cheap.ask(count):
                return places
            self._over = True
        bracket = self._cheap.found()
        if bracket.first_corrupt is not None:
            ends = (bracket.first_corrupt, bracket.last_clean)
            if left := [p for p in ends if p is not None and p not in self._told_exact]:
                return tuple(left[:count])
        return self._exact.ask(count)

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict of the oracle of `stage`."""
        if self._over:
            self._told_exact.add(place)
            self._exact.tell(place, verdict)
        else:
            self._cheap.tell(place, verdict)

    def found(self) -> Found:
        """By the exact oracle's verdicts alone, once it was asked."""
        return self._exact.found() if self._told_exact else self._cheap.found()

    def remaining(self, jobs: int = 1) -> int:
        """What is left of the cheap search and two judgings, or of the exact one."""
        if self._told_exact:
            return self._exact.remaining(jobs)
        return self._cheap.remaining(jobs) + ceil(2 / jobs)
