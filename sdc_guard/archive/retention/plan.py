"""What is kept and what goes: the policy, and what it has no say in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from .holds import GRACE, ends, holds, in_order
from .latency import HORIZON, Floats, LogUniform, excess
from .moments import Moments, interval_of
from .names import DEFAULT
from .policies import POLICIES
from .stored import Archive, Stored

SUSPECTS: Final = 2
_ASIDE: Final = "one of the newest set aside"
_DAY: Final = 86400.0
_LEAST: Final = 60.0 / _DAY  # days between two saves; saves are rarer wherever latency matters


@dataclass(frozen=True)
class Rule:
    """What the user asks for.

    Attributes:
        count: clean checkpoints that are kept beside those that are held.
        policy: which of them, by name.
        suspects: how many of the others are kept, the newest ones.
        horizon: days.
        grace: seconds in which what is untested stays.
        spacing: days and steps between two saves; None for what the newest ones show.
    """

    count: int
    policy: str = DEFAULT
    suspects: int = SUSPECTS
    horizon: float = HORIZON
    grace: float = GRACE
    spacing: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """One checkpoint, and why it stays; None if it goes."""

    stored: Stored
    stays: str | None


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        rows: all checkpoints, oldest first.
        goes: names of those that go, in the order in which they are to go: after each of them
            the plan of what is left is the rest of this one.
        spacing: days and steps between two saves, as they were taken.
        excess: days that one goes back too far on average with what stays; 0 without any.
        uncovered: the probability of a latency that nothing which stays is old enough for.
    """

    rows: tuple[Row, ...]
    goes: tuple[str, ...]
    spacing: tuple[float, float]
    excess: float
    uncovered: float

    @property
    def freed(self) -> int:
        """Bytes of what goes."""
        return sum(row.stored.bytes for row in self.rows if row.stays is None)


def plan(archive: Archive, rule: Rule, now: float) -> Plan:
    """Decide.

    Checkpoints of one step of one attempt, as several ranks or repeated saves leave them, stay or
    go together. Ages count from the newest clean one, so that a run that rests loses nothing.

    Args:
        archive: as it is.
        rule: as it was asked for.
        now: seconds since the epoch, for the grace.
    """
    held, protected = holds(archive, now, rule.grace), ends(archive)
    stored = in_order(archive.stored)
    groups = _by_step([one for one in stored if one.good])
    moments, spacing = _moments(groups, rule, held)
    goes = [
        one.name
        for place in POLICIES[rule.policy](moments)
        for one in groups[place]
        if not any(also.name in protected for also in groups[place])
    ]
    aside = [one.name for one in stored if not one.good and one.name not in held]
    spared = {*aside[max(0, len(aside) - rule.suspects) :], *protected}
    goes += [name for name in aside if name not in spared]
    gone, reasons = set(goes), {**dict.fromkeys(aside, _ASIDE), **protected, **held}
    rows = tuple(
        Row(one, None if one.name in gone else reasons.get(one.name, rule.policy)) for one in stored
    )
    left = [place for place, group in enumerate(groups) if group[0].name not in gone]
    latency = LogUniform.between(spacing[0], rule.horizon)
    return Plan(rows, tuple(goes), spacing, *excess(moments.ages[left][::-1], latency))


def _moments(
    groups: list[list[Stored]], rule: Rule, held: Mapping[str, str]
) -> tuple[Moments, tuple[float, float]]:
    """What the policy is asked about, and the days and steps between two saves."""
    at = _days(groups)
    interval, stride = spacing = rule.spacing or _spacing(at, groups)
    at_held = frozenset(
        place for place, group in enumerate(groups) if any(one.name in held for one in group)
    )
    numbers = tuple(round(group[0].step / stride) for group in groups)
    return Moments(at, rule.count, interval, at_held, rule.horizon, numbers), spacing


def _by_step(good: list[Stored]) -> list[list[Stored]]:
    groups: dict[tuple[int, int], list[Stored]] = {}
    for one in good:
        groups.setdefault((one.step, one.attempt), []).append(one)
    return list(groups.values())


def _days(groups: list[list[Stored]]) -> Floats:
    """When each was saved; a clock that was put back does not turn their order round."""
    created = np.array([group[0].created for group in groups], dtype=np.float64)
    days: Floats = np.maximum.accumulate(created) / _DAY if len(created) else created
    return days


def _spacing(at: Floats, groups: list[list[Stored]]) -> tuple[float, float]:
    """Between two saves, in days and in steps; which are counted exactly, as days are not."""
    steps = np.array([group[0].step for group in groups], dtype=np.float64)
    return interval_of(at, _LEAST), interval_of(steps, 1.0)
