"""Checkpoints in groups of a step and an attempt, and when they were saved. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import numpy as np

from .latency import Floats
from .moments import Moments, interval_of
from .rule import Rule
from .stored import Stored

_DAY: Final = 86400.0
_LEAST: Final = 60.0 / _DAY  # days between two saves; saves are rarer wherever latency matters


def moments_of(
    groups: list[list[Stored]], rule: Rule, held: Container[str]
) -> tuple[Moments, tuple[float, float]]:
    """What the policy is asked about, and the days and steps between two saves."""
    at = _days(groups)
    interval, stride = spacing = rule.spacing or _spacing(at, groups)
    at_held = frozenset(
        place for place, group in enumerate(groups) if any(one.name in held for one in group)
    )
    numbers = tuple(round(group[0].step / stride) for group in groups)
    return Moments(at, rule.count, interval, at_held, rule.horizon, numbers), spacing


def by_step(good: list[Stored]) -> list[list[Stored]]:
    """Checkpoints of one step of one attempt together, in the order of the first ones."""
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
