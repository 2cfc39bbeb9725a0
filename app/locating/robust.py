"""Robust comparison of a few values with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

# 1.4826 times the median distance from the median estimates the standard deviation of a normal
# distribution, and half of all values may be anything.
MAD_TO_SIGMA: Final = 1.4826
FEWEST: Final = 3  # of two that differ nobody knows which is wrong


def across(values: Sequence[float | None], floor: float) -> list[float | None]:
    """The robust z of each value among all of them: (x − median) / (1.4826 · MAD + floor).

    Args:
        values: logarithms; what is None or not finite counts for nothing and has no z.
        floor: s₀, what a difference is worth at least, in the unit of the values.

    Returns:
        z; None of all of them when fewer than `FEWEST` values are finite.
    """
    known = np.array([x for x in values if x is not None and math.isfinite(x)])
    if len(known) < FEWEST:
        return [None] * len(values)
    middle = float(np.median(known))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(known - middle))) + floor
    return [(x - middle) / spread if x is not None and math.isfinite(x) else None for x in values]
