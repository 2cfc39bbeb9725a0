"""How long a search will still take, from how long its judgings took."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

WORTH_TELLING: Final = 2.0  # seconds; what is over sooner needs no word


def seconds_left(seconds: Sequence[float], remaining: int, jobs: int) -> float:
    """At the mean of the judgings so far, `jobs` at a time.

    Args:
        seconds: that each of them took.
        remaining: how many judgings are left.
        jobs: at once.
    """
    if not seconds:
        return 0.0
    return sum(seconds) / len(seconds) * ceil(remaining / jobs)


def duration(seconds: float) -> str:
    """12 s, 3 min, 2.5 h, 4.0 d: as precise as an estimate is."""
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 99.5:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 60 * 48 else f"{minutes / 60 / 24:.1f} d"


def left_line(seconds: Sequence[float], remaining: int, jobs: int) -> str | None:
    """How much is left, in words; None where that is not worth a line."""
    left = seconds_left(seconds, remaining, jobs)
    if left < WORTH_TELLING:
        return None
    return f"{len(seconds)} judged, about {remaining} to go: {duration(left)}"
