"""How long a search will still take, from how long its judgings took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WORTH_TELLING: Final = 2.0  # seconds; what is over sooner needs no word


def seconds_left(seconds: Sequence[float], rounds: int) -> float:
    """Rounds at the mean of the judgings so far; 0 where there was none.

    Args:
        seconds: that each of them took.
        rounds: how many are left, of judgings at the same time.
    """
    return sum(seconds) / len(seconds) * rounds if seconds else 0.0


def duration(seconds: float) -> str:
    """1.5 s, 12 s, 3 min, 2.5 h, 4.0 d: as precise as an estimate is."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 99.5:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 60 * 48 else f"{minutes / 60 / 24:.1f} d"


def left_line(seconds: Sequence[float], rounds: int, jobs: int) -> str | None:
    """How much is left, in words; None where that is not worth a line."""
    left = seconds_left(seconds, rounds)
    if left < WORTH_TELLING:
        return None
    what = f"{rounds} more" if jobs == 1 else f"{rounds} more rounds of {jobs}"
    return f"{len(seconds)} judged, about {what}: {duration(left)}"
