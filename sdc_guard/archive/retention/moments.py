"""What a policy is asked about: when the checkpoints were saved, and how many may stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .latency import HORIZON, Floats


@dataclass(frozen=True)
class Moments:
    """Checkpoints that exist at the moment of a save.

    Attributes:
        at: when each was saved, in days since any moment that stays the same, ascending. The last
            one is the present.
        count: how many of those that are not held may stay, at least 1.
        interval: days between two saves.
        held: places in `at` of those that stay whatever the policy; they do not count.
        horizon: days; how far back anybody expects to have to go.
        numbers: which save of the run each one is, by which Tower of Hanoi has its levels; None
            for `at` in intervals.
    """

    at: Floats
    count: int
    interval: float
    held: frozenset[int] = frozenset()
    horizon: float = HORIZON
    numbers: tuple[int, ...] | None = None

    @property
    def free(self) -> list[int]:
        """Places of those that a policy decides about."""
        return [place for place in range(len(self.at)) if place not in self.held]

    def number(self, place: int) -> int:
        """Which save of the run it is."""
        if self.numbers is not None:
            return self.numbers[place]
        return round(float(self.at[place]) / self.interval)

    @property
    def ages(self) -> Floats:
        """In days, in the order of `at`."""
        ages: Floats = (self.at[-1] if len(self.at) else 0.0) - self.at
        return ages


def interval_of(at: Floats, least: float) -> float:
    """The distance of two saves, from those that are left of them.

    The smallest among the newest four: where a policy is applied at every save the two newest ones
    are always there. The default policy changes little by a factor of two.

    Args:
        at: in days as in `Moments`, or in steps.
        least: what it is at least, and where there are fewer than two.
    """
    gaps = np.diff(at[-4:])
    return float(max(least, min((gap for gap in gaps if gap > 0), default=least)))
