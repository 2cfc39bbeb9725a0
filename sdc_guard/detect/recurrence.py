"""Alerts that come at the same distance from the start of each attempt, whatever the data.

What counts from the start of a process (a buffer that fills, a counter that wraps, a scaler that
grows) strikes at a distance from it; a bad batch or a bad state strikes at a step. Told is what
chance would hardly do: alerts of one kind that fall anywhere in an attempt of T steps come within
w steps of a given distance with a probability of at most n·(2w + 1)/T, n of them being there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

CHANCE: Final = 0.01  # below it, it is told
_SHARE: Final = 1000  # the distances may differ by one in so many, and by one step
_MOST: Final = 64  # distances of an attempt that are looked at: more are noise
_NEWEST: Final = 50  # attempts that are looked at


@dataclass(frozen=True)
class AttemptAlerts:
    """One attempt, and the steps of its alerts of one kind.

    Attributes:
        attempt: its number.
        first_step: with which it began.
        last_step: the newest that is recorded.
        steps: of the alerts.
    """

    attempt: int
    first_step: int
    last_step: int
    steps: Sequence[int]

    @cached_property
    def distances(self) -> list[int]:
        """Steps from the start to each alert, rising."""
        found = {step - self.first_step for step in self.steps if step >= self.first_step}
        return sorted(found)[:_MOST]

    def closest(self, distance: int) -> int | None:
        """The distance next to this one; None if there is none at all."""
        place = bisect_left(self.distances, distance)
        near = self.distances[max(place - 1, 0) : place + 1]
        return min(near, key=lambda d: abs(d - distance), default=None)

    @property
    def length(self) -> int:
        """How many steps it ran."""
        return max(self.last_step - self.first_step + 1, 1)


@dataclass(frozen=True)
class Recurrence:
    """Alerts at one distance from the start.

    Attributes:
        kind: of the alerts.
        distances: by attempt.
        ran_so_far: attempts that ran as far, these among them.
        chance: probability of a coincidence, at most.
        same_step: whether they all came at one step: then the data is as likely the cause.
    """

    kind: str
    distances: Mapping[int, int]
    ran_so_far: int
    chance: float
    same_step: bool

    def __str__(self) -> str:
        low, high = min(self.distances.values()), max(self.distances.values())
        where = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        attempts = ", ".join(map(str, sorted(self.distances)))
        text = (
            f"{self.kind} came {where} steps after the start of {len(self.distances)} attempts "
            f"({attempts}) of the {self.ran_so_far} that ran so far"
        )
        if self.same_step:
            return f"{text}, each time at the same step: the start or the data of that step"
        return (
            f"{text}, whatever the data: look for what counts from the start of the process "
            "(a buffer that fills, a counter, memory that runs out, a loss scale that grows)"
        )


def recurrences(alerts: Mapping[str, Sequence[AttemptAlerts]]) -> list[Recurrence]:
    """What comes at the same distance in most attempts that ran so far, in at least two.

    Args:
        alerts: by kind, each attempt, those without alerts too.
    """
    found = (_recurrence(kind, attempts[-_NEWEST:]) for kind, attempts in alerts.items())
    return [one for one in found if one is not None]


def _recurrence(kind: str, attempts: Sequence[AttemptAlerts]) -> Recurrence | None:
    """The least probable one."""
    best: Recurrence | None = None
    for anchor in attempts:
        for distance in anchor.distances:
            one = _at(kind, attempts, anchor, distance)
            if one is not None and (best is None or one.chance < best.chance):
                best = one
    return best


def _at(
    kind: str, attempts: Sequence[AttemptAlerts], anchor: AttemptAlerts, distance: int
) -> Recurrence | None:
    within = max(1, distance // _SHARE)
    ran = [attempt for attempt in attempts if attempt.length > distance - within]
    near: dict[int, int] = {}
    chance = float(sum(len(attempt.distances) for attempt in ran))  # any could be the anchor
    for attempt in ran:
        closest = attempt.closest(distance)
        if closest is None or abs(closest - distance) > within:
            continue
        near[attempt.attempt] = closest
        if attempt is not anchor:
            chance *= min(1.0, len(attempt.distances) * (2 * within + 1) / attempt.length)
    if len(near) < 2 or 2 * len(near) <= len(ran) or chance > CHANCE:
        return None
    at = {a.first_step + near[a.attempt] for a in ran if a.attempt in near}
    return Recurrence(kind, near, len(ran), chance, max(at) - min(at) <= within)
