"""Which steps are audited: by a hash that every rank computes alike, and after an alert."""

from __future__ import annotations

from collections import deque
from typing import Final

# Steps after the first one that are audited at any rate but 0: they show whether the training
# repeats at all, before a difference has to be judged.
CALIBRATING: Final = (1, 2, 4)
MOST_ON_ALERT: Final = 10  # audits because of an alert
PER_STEPS: Final = 1000  # in so many steps

_MASK = 2**64 - 1


def is_chosen(step: int, attempt: int, rate: float, first_step: int) -> bool:
    """Whether a step is audited by the schedule; it touches no random generator.

    Args:
        step: its number.
        attempt: of the run, so that a step that repeats in each attempt is seen in some.
        rate: probability, 0 to 1.
        first_step: of this attempt.
    """
    if rate <= 0 or step == first_step:  # the first one is looked at for what can be run again
        return False
    if step - first_step in CALIBRATING:
        return True
    return _mixed(step * 0x9E3779B97F4A7C15 + attempt) < rate * 2.0**64


def _mixed(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), twice: attempts are small numbers."""
    for _ in range(2):
        value &= _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value


class AlertBudget:
    """At most MOST_ON_ALERT audits because of alerts in any PER_STEPS steps."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque()

    def spend(self, step: int) -> bool:
        """Whether one more is allowed at this step; it is counted then."""
        while self._steps and step - self._steps[0] >= PER_STEPS:
            self._steps.popleft()
        if len(self._steps) >= MOST_ON_ALERT:
            return False
        self._steps.append(step)
        return True
