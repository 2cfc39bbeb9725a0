"""What is read between two steps, on a budget of the step's time: tensors and step counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

_GUESSED_SPEED: Final = 0.5e9  # bytes a second, until a digest was timed
_A_TENSOR: Final = 8192  # bytes that could be read in the time that each tensor costs besides
_WEIGHT: Final = 0.2  # of the newest observation in the average
_RECENT: Final = 8  # steps
_FOR_COUNTERS: Final = 0.5  # of the budget, at most
_FIRST: Final = 8  # readings that are there to learn what they take: of counters, whatever it is
# what reading takes of a step in all, by the seconds that it takes itself: as much again goes to
# its rows, and to what it pushes out of the caches. By leaving it out of steps of 40 and 700 ms it
# was 2.5 and 3, each by a measurement that may be wrong by 1
_IN_ALL: Final = 2.0
_TOGETHER: Final = (8, 32)  # steps' allowances that are spent at once, at least and at most
_WORTH: Final = 1e-3  # seconds that these add up to, where they can: to begin has a price, too


class Rotation:
    """Chooses what is read after a step and again before the next one.

    Args:
        budget: percent of a step's time that digests and step counters may take on average, with
            what follows from them, or None for all of them at every step: then it is `whole`.

    A tensor that costs more than one step's budget is taken when enough has been saved up; where a
    step's allowance is small, those of up to 32 steps are saved up in any case. The counters are
    read all together, every n-th step. They take up to half of the budget, and the tensors what
    remains; only the first few readings come on top of it.
    """

    def __init__(self, budget: float | None) -> None:
        self._budget = budget
        self.whole = budget is None
        self._speed, self._timed = _GUESSED_SPEED, 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._step_seconds: float | None = None
        self._credit = 0.0
        self._next = 0
        self._readings = 0.0  # of the counters a second
        self._due = self._wait = 0  # how often they were due, and the steps until they are again
        self._known: Mapping[tuple[str, int], int] = {}
        self._size = 0

    def step_took(self, seconds: float) -> None:
        """Learn the time from one step to the next, in seconds."""
        # the shortest: a pause (evaluation, a checkpoint) is no measure of what a step may cost
        self._recent.append(seconds)
        self._step_seconds = min(self._recent)

    def digested(self, tensors: int, size: int, seconds: float) -> None:
        """Learn the speed of digests: `tensors` of `size` bytes together took `seconds`."""
        size += tensors * _A_TENSOR
        if tensors and seconds > 0:
            self._speed += _WEIGHT * (size / seconds - self._speed)
            self._timed += 1

    def counters_took(self, seconds: float) -> None:
        """Learn the time of one reading of the step counters, in seconds."""
        if seconds > 0:
            self._readings += _WEIGHT * (1 / seconds - self._readings)

    def counters_due(self) -> bool:
        """Whether they are read after this step and before the next one; asked at each step."""
        if not self._budget:
            return self.whole
        self._wait -= 1
        if self._wait >= 0:
            return False
        self._due += 1
        share = _FOR_COUNTERS * self._allowed()
        if self._due >= _FIRST and share > 0:
            self._wait = math.ceil(max(self._for_counters() / share, self._worth())) - 1
        return True

    def _allowed(self) -> float:
        """Seconds a step that reading itself may take."""
        return (self._budget or 0.0) / 100 / _IN_ALL * (self._step_seconds or 0.0)

    def _worth(self) -> float:
        """Steps whose allowances are worth it to begin."""
        allowed = self._allowed()
        return min(_WORTH / allowed, _TOGETHER[1]) if allowed > 0 else _TOGETHER[1]

    def _for_counters(self) -> float:
        """Seconds that one reading after a step and one before the next take."""
        return 2 / self._readings if self._readings else 0.0

    def choose(
        self, keys: Sequence[tuple[str, int]], sizes: Mapping[tuple[str, int], int]
    ) -> list[tuple[str, int]]:
        """The next tensors in turn.

        Args:
            keys: all tensors.
            sizes: their sizes in bytes.
        """
        if self._budget is None:
            return list(keys)
        if self._step_seconds is None or not keys:
            return []
        allowed = self._allowed()
        allowed -= min(self._for_counters(), _FOR_COUNTERS * allowed)
        # each is read twice: after this step and before the next
        allowance = allowed * self._speed / 2
        if sizes is not self._known:
            self._known, self._size = sizes, sum(sizes.values()) + len(sizes) * _A_TENSOR
        whole = self._size
        self._credit = min(self._credit + allowance, max(whole, allowance))
        together = max(_TOGETHER[0], self._worth() if self._timed >= _FIRST else 0)
        if self._credit < min(whole, together * allowance):
            return []
        chosen: list[tuple[str, int]] = []
        for _ in keys:
            key = keys[self._next % len(keys)]
            cost = sizes[key] + _A_TENSOR
            if cost > self._credit:
                break
            self._credit -= cost
            self._next += 1
            chosen.append(key)
        return chosen
