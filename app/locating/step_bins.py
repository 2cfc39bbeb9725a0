"""How a span of steps is cut: bins for the columns of a heatmap, stretches to judge values by.

Both have a power of two of steps and begin at multiples of it, so that they stay where they are
while a run grows, and every bin lies in one stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_COLUMNS: Final = 160
STRETCH: Final = 128  # recorded steps; as many as the sensor's window
_STRETCHES: Final = 8


def bin_width(first: int, last: int, columns: int = MAX_COLUMNS) -> int:
    """The least power of two of steps with which at most `columns` bins touch the steps.

    Args:
        first, last: steps, both included.
        columns: at least 2: two steps may lie on either side of any boundary.
    """
    width = 1
    while last // width - first // width >= columns:
        width *= 2
    return width


@dataclass(frozen=True)
class Stretches:
    """What values are judged by: a layer's values in the same stretch of steps.

    Attributes:
        length: steps of a stretch, a power of two.
        first, last: their numbers, a step's being step // length; what is before the first or
            after the last belongs to that.
        share: of the steps of a stretch that the median is taken of, 1 / share; a power of two.
    """

    length: int
    first: int
    last: int
    share: int

    def of(self, step: int) -> int:
        """The number of the stretch that a step belongs to."""
        return max(self.first, min(self.last, step // self.length))


def stretches(first: int, last: int, recorded: int) -> Stretches:
    """At most nine stretches of `STRETCH` recorded steps or more.

    A part of less than half a stretch at either end belongs to its neighbour.

    Args:
        first, last: steps of the run, both included.
        recorded: how many of them have values; at least 1.
    """
    span = last - first + 1
    length, steps_per_value = 1, max(1.0, span / max(recorded, 1))
    while length < STRETCH * steps_per_value or span > _STRETCHES * length:
        length *= 2
    low, high = first // length, last // length
    if low < high and (low + 1) * length - first < length / 2:
        low += 1
    if low < high and last + 1 - high * length < length / 2:
        high -= 1
    share = 1
    while length / steps_per_value / (2 * share) >= STRETCH:
        share *= 2
    return Stretches(length, low, high, share)


def around(step: int, first: int, last: int, columns: int = MAX_COLUMNS) -> tuple[int, int]:
    """A window of steps as wide as a heatmap shows one by one, with `step` in its middle.

    Args:
        step: of the window.
        first, last: it does not reach beyond these, both included.
        columns: at most so many steps.
    """
    low = max(first, min(step - columns // 2, last - columns + 1))
    return low, min(last, low + columns - 1)
