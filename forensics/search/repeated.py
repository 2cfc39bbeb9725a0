"""Binary search with an oracle that answers by chance: several runs per judging.

One failure in any run is corrupt: a clean checkpoint is taken never to fail. That is wrong of an
oracle that fails by chance everywhere, and choosing the places by what failed hides it. So both
sides of the bracket are run again, with nothing chosen by these runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import ceil, comb
from typing import Final

from .binary import Binary
from .verdicts import Found, Probe, Verdict

MOST_BLOCKS: Final = 10  # of `runs` more on both sides, before the boundary is given up


class Repeated:
    """Each place is run `runs` times; a run is what is asked and told.

    The boundary is taken for one when fresh runs of the last clean place all pass, and so many of
    the first corrupt place's fail that it would come about with a probability below 1 - confidence
    if both failed alike (Fisher's exact test, one-sided, after each block of `runs` on both
    sides). If one of the clean place's fails it is corrupt after all and the search goes on.

    Args:
        count: number of checkpoints.
        runs: per judging, at least 2.
        confidence: see above.
        skipped: places that are not to be judged.
    """

    stage = 0

    def __init__(
        self, count: int, runs: int, confidence: float = 0.95, skipped: Collection[int] = ()
    ) -> None:
        self._inner = Binary(count, skipped)
        self._runs, self._confidence = runs, confidence
        self._passed: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._queue: list[int] = []
        self._open: Counter[int] = Counter()
        self._fresh: tuple[int, int] | None = None  # the bracket that is run again
        self._before: Counter[int] = Counter()  # failures on its sides before that
        self._blocks = 0
        self._probes: list[Probe] = []

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """The next runs, each named by its place."""
        if not self._queue:
            self._queue = [
                place
                for place in self._inner.ask(max(1, count // self._runs)) or self._again()
                for _ in range(self._runs)
            ]
        round_, self._queue = self._queue[:count], self._queue[count:]
        self._open.update(round_)
        return tuple(round_)

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict of one run."""
        self._probes.append((place, verdict))
        self._open[place] -= 1
        if verdict == "clean":
            self._passed[place] += 1
        elif verdict == "corrupt":
            self._failed[place] += 1
        elif not self._conclusive(place):  # it will be the next time, too
            self._queue = [queued for queued in self._queue if queued != place]
        if not self._open[place] and place not in self._queue:
            self._settle(place)

    def found(self) -> Found:
        """The bracket by now, and whether both of its sides differ."""
        found = replace(self._inner.found(), probes=tuple(self._probes))
        first = found.first_corrupt
        if first is None:
            return found
        if found.last_clean is None:
            return replace(found, stable=self._passed[first] == 0)
        return replace(found, stable=self._blocks < MOST_BLOCKS or self._told_apart())

    def remaining(self, jobs: int = 1) -> int:
        """Runs that are queued, those of the search, and one more block on both sides."""
        search = self._inner.remaining()
        more = 0 if self._fresh is not None and not search else 2 * self._runs
        return ceil((len(self._queue) + search * self._runs + more) / jobs)

    def _conclusive(self, place: int) -> bool:
        return self._passed[place] + self._failed[place] > 0

    def _settle(self, place: int) -> None:
        """All runs of a place that were wanted are told."""
        if not self._conclusive(place):
            self._inner.tell(place, "untestable")
        elif self._failed[place]:
            if self._inner.found().verdicts.get(place) != "corrupt":
                self._inner.tell(place, "corrupt")
        elif self._inner.found().verdicts.get(place) != "clean":
            self._inner.tell(place, "clean")

    def _again(self) -> tuple[int, ...]:
        """Both sides of the bracket, until they are told apart; () when the search is over."""
        found = self._inner.found()
        low, high = found.last_clean, found.first_corrupt
        if low is None or high is None:
            return ()
        if self._fresh != (low, high):
            self._fresh, self._blocks = (low, high), 0
            self._before = Counter({high: self._failed[high]})
        elif self._blocks == MOST_BLOCKS or self._told_apart():
            return ()
        self._blocks += 1
        return low, high

    def _told_apart(self) -> bool:
        """Whether the failures on one side alone are no chance, by Fisher's exact test.

        f failures of r runs against none of r: C(r, f) / C(2 r, f), one-sided.
        """
        if self._fresh is None:
            return False
        high = self._fresh[1]
        runs, failed = self._blocks * self._runs, self._failed[high] - self._before[high]
        return comb(runs, failed) / comb(2 * runs, failed) < 1 - self._confidence
