"""In which order differing tensors are told: those first that look least like their kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from .checkpoint_diff import TensorDiff
from .state_kinds import OTHER

_FEW: Final = 4  # tensors of a kind, below which there is nothing to compare with
_LEAST: Final = 0.1  # decades: equal tensors have no spread, and rounding is no finding


def by_unusual(found: Sequence[TensorDiff]) -> list[TensorDiff]:
    """Tensors whose bits differ, those first that differ least like the others of their kind.

    Second moments spread over many decades in any training, parameters do not: a tensor is
    measured by its distance from the median of its kind, in median distances from it. Where
    nearly all moved, few changed elements, or one that moved further than the others, stand out.
    """
    different = [one for one in found if one.bits is not None]
    usual = {role: _usual(role, different) for role in {one.role for one in different}}

    def rank(one: TensorDiff) -> tuple[bool, float, str]:
        middle, spread = usual[one.role]
        unusual = (one.unusual - middle) / spread
        # counters and states of random generators have nothing in common to be measured by
        return (one.role == OTHER and math.isfinite(unusual), -unusual, one.name)

    return sorted(different, key=rank)


def _usual(role: str, different: Sequence[TensorDiff]) -> tuple[float, float]:
    """Median of how unusual tensors of a kind are, and the median distance from it."""
    values = [one.unusual for one in different if one.role == role and math.isfinite(one.unusual)]
    if len(values) < _FEW:
        return 0.0, 1.0
    middle = median(values)
    return middle, max(_LEAST, median(abs(value - middle) for value in values))
