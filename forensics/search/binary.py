"""Binary search, or k-section where several can be judged at once.

What is corrupt is assumed to stay corrupt. A clean one that is known after a corrupt one shows
that it does not: `Found.later_clean`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import ceil

from .planner import drive
from .verdicts import Found, Probe, Verdict, found_from


class Binary:
    """Both ends first, then what divides the places between evenly; each place at most once.

    A monotone archive of n takes at most ⌈log2 n⌉ + 2 judgings, and one more per untestable
    place met: 2 ends, and n - 1 places where the edge can be.

    Args:
        count: number of checkpoints, in the order of their steps.
        skipped: places that are not to be judged.
        known: verdicts that are known already, or trusted.
    """

    stage = 0

    def __init__(
        self,
        count: int,
        skipped: Collection[int] = (),
        known: Mapping[int, Verdict] | None = None,
    ) -> None:
        self._count = count
        self._places = [place for place in range(count) if place not in skipped]
        self._skipped = tuple(skipped)
        self._verdicts: dict[int, Verdict] = dict(known or {})
        self._probes: list[Probe] = []
        self._misses = 0  # untestable ones in a row

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """The ends that are not known yet, else up to `count` places between."""
        if ends := self._ends():
            return tuple(ends[:count])
        between = self._between()
        if len(between) <= count:
            return tuple(between)
        if self._misses == 0:
            return tuple(
                between[i * (len(between) + 1) // (count + 1) - 1] for i in range(1, count + 1)
            )
        # beside an untestable one others are, often: a whole stretch was damaged
        return tuple(_spread(self._near_middle(between, count), self._misses, count))

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict; that of a place known before is replaced."""
        self._verdicts[place] = verdict
        self._probes.append((place, verdict))
        self._misses = self._misses + 1 if verdict == "untestable" else 0

    def found(self) -> Found:
        """The bracket by now."""
        return found_from(self._verdicts, self._probes, self._skipped)

    def remaining(self, jobs: int = 1) -> int:
        """How many rounds it takes at most, unless more are untestable."""
        ends = self._ends()
        if not ends:
            return _rounds(len(self._between()), jobs)
        inner = max(len(self._untold()) - len(ends), 0)
        return ceil(len(ends) / jobs) + _rounds(inner, jobs)

    def _untold(self) -> list[int]:
        return [place for place in self._places if place not in self._verdicts]

    def _ends(self) -> list[int]:
        """The next place to judge for the upper end, and for the lower, where still needed."""
        found, untold = self.found(), self._untold()
        clean = -1 if found.last_clean is None else found.last_clean
        ends = []
        if found.first_corrupt is None:
            ends = [place for place in untold if place > clean][-1:]
        if found.first_corrupt is None or found.last_clean is None:
            low = next((p for p in self._places if self._verdicts.get(p) != "untestable"), None)
            if low is not None and low not in self._verdicts and low not in ends:
                ends.append(low)
        return ends

    def _between(self) -> list[int]:
        """What is not judged yet between the last clean and the first corrupt one."""
        found = self.found()
        if found.first_corrupt is None or found.last_clean is None:
            return []
        return [p for p in self._untold() if found.last_clean < p < found.first_corrupt]

    def _near_middle(self, between: list[int], count: int) -> list[int]:
        """Those that leave so few, whatever they say, that the bound of the class still holds."""
        met = len(self.found().untestable)
        left = (self._count - 1).bit_length() + 2 + met - len(self._probes)
        most = 2 ** (left - 1) - 1 if count == 1 else len(between)
        near = between[max(len(between) - 1 - most, 0) : most + 1]
        return near or between[(len(between) - 1) // 2 :][:1]


def _rounds(places: int, jobs: int) -> int:
    """Rounds that divide so many places by `jobs` + 1 each until none is left."""
    rounds = 0
    while places > 0:
        places = ceil((places - jobs) / (jobs + 1))
        rounds += 1
    return rounds


def _spread(between: list[int], misses: int, count: int) -> Iterable[int]:
    """Other places than the middle: 1/4, 3/4, 1/8, 5/8, ... of the way (van der Corput)."""
    chosen: dict[int, None] = {}
    index = misses
    while len(chosen) < count:
        index += 1
        chosen[between[int(_fraction(index) * len(between))]] = None
    return chosen


def _fraction(index: int) -> float:
    """1, 2, 3, 4, ... to 1/2, 1/4, 3/4, 1/8, ...: the bits of the number, mirrored."""
    return int(f"{index:b}"[::-1], 2) / (1 << index.bit_length())


def bisect(count: int, judge: Callable[[int], Verdict]) -> Found:
    """Find the first corrupt of `count` checkpoints, judging each at most once.

    Args:
        count: number of checkpoints, in the order of their steps.
        judge: called with a place in [0, count).
    """
    return drive(Binary(count), judge)
