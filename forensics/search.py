"""Bisection over checkpoints: pure, no I/O.

The order is that of the steps. It is assumed that what is corrupt stays corrupt; what a later
clean checkpoint would say against that is the caller's to notice in the probes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["clean", "corrupt", "untestable"]


@dataclass(frozen=True)
class Found:
    """Where a search ended; all are places in the searched order.

    Attributes:
        last_clean: the last one judged clean, or None when none was.
        first_corrupt: the first one judged corrupt, or None when none was.
        untestable: those that could not be judged.
        probes: every judging in its order.
    """

    last_clean: int | None
    first_corrupt: int | None
    untestable: tuple[int, ...]
    probes: tuple[tuple[int, Verdict], ...]

    @property
    def exact(self) -> bool:
        """Whether nothing untestable lies between the last clean and the first corrupt."""
        if self.first_corrupt is None:
            return False
        start = -1 if self.last_clean is None else self.last_clean
        return self.first_corrupt == start + 1


def bisect(count: int, judge: Callable[[int], Verdict]) -> Found:
    """Find the first corrupt of `count` checkpoints, judging each at most once.

    The last one is judged first: if it is clean there is nothing to find. Then the first one, so
    that both ends are known; then the middle of what is left, passing over the untestable.

    Args:
        count: number of checkpoints, in the order of their steps.
        judge: called with a place in [0, count).
    """
    probes: list[tuple[int, Verdict]] = []
    untestable: set[int] = set()

    def probe(place: int) -> Verdict:
        verdict = judge(place)
        probes.append((place, verdict))
        if verdict == "untestable":
            untestable.add(place)
        return verdict

    def found(low: int | None, high: int | None) -> Found:
        return Found(low, high, tuple(sorted(untestable)), tuple(probes))

    high = _end(range(count - 1, -1, -1), probe)
    if high is None:
        return found(None, None)
    if probes[-1][1] == "clean":
        return found(high, None)
    low = _end(range(high), probe)
    if low is None:
        return found(None, high)
    if probes[-1][1] == "corrupt":
        return found(None, low)
    while (middle := _middle(low, high, untestable)) is not None:
        verdict = probe(middle)
        if verdict == "clean":
            low = middle
        elif verdict == "corrupt":
            high = middle
    return found(low, high)


def _end(places: range, probe: Callable[[int], Verdict]) -> int | None:
    """The first of `places` that can be judged, judged last."""
    for place in places:
        if probe(place) != "untestable":
            return place
    return None


def _middle(low: int, high: int, untestable: set[int]) -> int | None:
    """The judgeable place strictly between that is nearest to the middle."""
    between = [place for place in range(low + 1, high) if place not in untestable]
    centre = (low + high) / 2
    return min(between, key=lambda place: abs(place - centre), default=None)
