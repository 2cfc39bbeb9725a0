"""Between which values each of many streams has been so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class SeenRange:
    """The extremes of streams. What raised an alarm counts once the stream has left it again.

    Args:
        shape: of one step's streams.
        beyond: in widths of what was seen, how far outside still counts as within. What moves in
            steps has a new most again and again: each is further than all before it by a step, and
            seldom by as much as all of them together.
    """

    def __init__(self, shape: tuple[int, ...], *, beyond: float = 0.0) -> None:
        self.beyond = beyond
        self._low, self._high = np.full(shape, np.inf), np.full(shape, -np.inf)
        # those of an alarm that goes on
        self._low_now: Floats | None = None
        self._high_now: Floats | None = None

    def holds(self, values: Floats) -> Bools:
        """Whether each value lies within what its stream has shown before, or near enough.

        Args:
            values: shape (steps, *shape).
        """
        return self._within(values, self._low, self._high)

    def _within(self, values: Floats, low: Floats, high: Floats) -> Bools:
        known = high >= low
        width = np.where(known, high, 0.0) - np.where(known, low, 0.0)
        more = self.beyond * width
        held: Bools = known & (values >= low - more) & (values <= high + more)
        return held

    def held_and_taken(self, values: Floats, over: Bools | None) -> Bools:
        """Which values each stream had shown when they came; each is taken in before the next.

        Args:
            values, over: as in `take`.
        """
        if over is None and self._low_now is None:  # what came before each, and all at once
            low = np.fmin.accumulate(np.concatenate([self._low[None], values[:-1]]))
            high = np.fmax.accumulate(np.concatenate([self._high[None], values[:-1]]))
            held = self._within(values, low, high)
            self.take(values, None)
            return held
        held = self.holds(values)
        if len(values) == 1 or (held | np.isnan(values)).all():
            self.take(values, over)
            return held
        for step in range(len(values)):
            held[step] = self.holds(values[step : step + 1])[0]
            self.take(values[step : step + 1], None if over is None else over[step : step + 1])
        return held

    def take(self, values: Floats, over: Bools | None) -> None:
        """Take in some steps.

        Args:
            values: shape (steps, *shape); NaN for none.
            over: those that raise an alarm, alike; None for none.
        """
        if over is None and self._low_now is None:
            self._low = np.fmin(self._low, np.fmin.reduce(values))
            self._high = np.fmax(self._high, np.fmax.reduce(values))
            return
        for step, row in enumerate(values):
            self._take_one(row, np.zeros(row.shape, dtype=bool) if over is None else over[step])

    def _take_one(self, values: Floats, over: Bools) -> None:
        low = np.full(values.shape, np.inf) if self._low_now is None else self._low_now
        high = np.full(values.shape, -np.inf) if self._high_now is None else self._high_now
        inside = ~over & np.isfinite(values)
        self._low = np.where(inside, np.fmin(self._low, np.fmin(low, values)), self._low)
        self._high = np.where(inside, np.fmax(self._high, np.fmax(high, values)), self._high)
        low = np.where(inside, np.inf, np.where(over, np.fmin(low, values), low))
        high = np.where(inside, -np.inf, np.where(over, np.fmax(high, values), high))
        goes_on = bool(np.isfinite(low).any())
        self._low_now, self._high_now = (low, high) if goes_on else (None, None)

    def remember(self) -> tuple[Any, ...]:
        """What `go_back` needs."""
        return self._low, self._high, self._low_now, self._high_now

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Undo what was taken in since."""
        self._low, self._high, self._low_now, self._high_now = remembered
