"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from .classic import daily_weekly_monthly, keep_last, tower_of_hanoi, uniform
from .greedy import greedy_log
from .moments import Moments

# what exists → the places that are to go, in this order
Policy = Callable[[Moments], tuple[int, ...]]

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "greedy-log": greedy_log,
        "keep-last": keep_last,
        "uniform": uniform,
        "daily-weekly-monthly": daily_weekly_monthly,
        "tower-of-hanoi": tower_of_hanoi,
    }
)
