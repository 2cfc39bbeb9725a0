"""The policies that others use: keep-last, uniform, daily-weekly-monthly, Tower of Hanoi. Pure.

Each puts the checkpoints into an order of importance by a grid that does not move with the
present, so that what counts now was not thrown away before; what is left of the count is filled up
with the newest. Returned are the places that go, the oldest first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from .moments import Moments

_WEEK, _MONTH = 7.0, 30.0  # days
_CLOSE = 1e-9  # days


def keep_last(moments: Moments) -> tuple[int, ...]:
    """The newest ones."""
    return others(moments, ())


def uniform(moments: Moments) -> tuple[int, ...]:
    """The newest, and the first in each of count − 1 equal parts of the horizon."""
    width = moments.horizon / max(1, moments.count - 1)
    return others(moments, _firsts(moments, width))


def daily_weekly_monthly(moments: Moments) -> tuple[int, ...]:
    """The newest, and the first of each of the newest days, weeks (7 days) and months (30 days).

    As many months as the horizon has, as far as they take no more than a third of the count; as
    many weeks as two months have, and no more than another third; the rest are days.
    """
    months = min(math.ceil(moments.horizon / _MONTH), max(1, moments.count // 3))
    weeks = min(math.ceil(2 * _MONTH / _WEEK), moments.count // 3)
    return others(moments, grandfathers(moments, months, weeks))


def grandfathers(moments: Moments, months: int, weeks: int) -> Iterator[int]:
    """The first of each of the newest `months`, `weeks`, and then days, in this order."""
    yield from _firsts(moments, _MONTH)[:months]
    yield from _firsts(moments, _WEEK)[:weeks]
    yield from _firsts(moments, 1.0)


def tower_of_hanoi(moments: Moments) -> tuple[int, ...]:
    """The newest of each level; save number n has the level of the lowest one in binary.

    So the ages of the kept ones double from level to level. Where there are fewer levels than
    places the second newest of the highest ones follow, then the third.
    """
    levels: dict[int, list[int]] = defaultdict(list)
    for place in reversed(moments.free):
        number = moments.number(place)
        highest = max(0, moments.count - 2)
        levels[min(highest, _low_zeros(number)) if number else highest].append(place)
    rounds = max(map(len, levels.values()), default=0)
    order = [
        levels[level][nth]
        for nth in range(rounds)
        for level in sorted(levels, reverse=True)
        if nth < len(levels[level])
    ]
    return others(moments, order)


def _low_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


def _firsts(moments: Moments, width: float) -> list[int]:
    """The first one in each part of time of this width in days, the newest part first."""
    first: dict[int, int] = {}
    for place in moments.free:
        first.setdefault(math.floor((moments.at[place] + _CLOSE) / width), place)
    return [first[part] for part in sorted(first, reverse=True)]


def others(moments: Moments, order: Iterable[int]) -> tuple[int, ...]:
    """All but the newest one, the first ones of an order of importance, and then the newest."""
    free = moments.free
    kept: dict[int, None] = {}
    for place in (*free[-1:], *order, *reversed(free)):
        if len(kept) == moments.count:
            break
        kept[place] = None
    return tuple(place for place in free if place not in kept)
