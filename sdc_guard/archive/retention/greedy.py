"""greedy-log, the default policy: drop what is missed least. Pure."""

from __future__ import annotations

import numpy as np

from .latency import Floats, LogUniform
from .moments import Moments


def greedy_log(moments: Moments) -> tuple[int, ...]:
    """Drop, one after the other, the checkpoint whose loss adds least to the expected excess.

    The excess is what is trained again although it was right (`latency.excess`). A latency L
    between the ages aᵢ₋₁ and aᵢ of two neighbours is undone by the older one, i; without it by
    the next, i+1, which goes back aᵢ₊₁ − aᵢ further. So the loss of i adds

        (aᵢ₊₁ − aᵢ) · (F(aᵢ) − F(aᵢ₋₁))

    whatever the density f = F′; here it is log-uniform, from the interval between saves to the
    horizon. Ages are those at the next save: until then nothing can be mended, and those at this
    save would make the one before it worthless, as no latency is shorter than the interval.

    The newest stays: a crash needs it. The oldest stays until the next one is as old as the
    horizon, as nothing would be left to go back to: that is not a number of days. Of equals the
    oldest goes.

    What an optimum would be, spacing ∝ 1/√f, depends on ages, which change; a place that was
    given up cannot be had again. Dropping greedily by this measure comes within 1.4 times of
    the bound of `latency.least_excess`; see benchmarks/retention.py.

    Args:
        moments: as they are.

    Returns:
        places in `moments.at` in the order in which they are to go. Each one dropped is O(n).
    """
    latency = LogUniform.between(moments.interval, moments.horizon)
    left = np.arange(len(moments.at))[::-1]  # the newest first: ages ascend
    ages = moments.ages
    held = np.isin(np.arange(len(ages)), list(moments.held))
    dropped: list[int] = []
    for _ in range(max(0, len(moments.free) - moments.count)):
        costs = np.where(held[left], np.inf, _added(ages[left], moments.interval, latency))
        if np.isinf(costs).all():  # the newest and the oldest alone may go
            costs = np.where(held[left], np.inf, 0.0)
            costs[0] = np.inf
        least = int(np.flatnonzero(costs == costs.min())[-1])
        dropped.append(int(left[least]))
        left = np.delete(left, least)
    return tuple(dropped)


def _added(ages: Floats, interval: float, latency: LogUniform) -> Floats:
    """What the loss of each adds to the excess in days; infinite for the newest and the oldest."""
    mass = np.diff(latency.below(ages + interval), prepend=0.0)
    added: Floats = np.full(len(ages), np.inf)
    added[:-1] = np.diff(ages) * mass[:-1]
    if len(ages) > 1 and ages[-2] >= latency.high:
        added[-1] = 0.0
    added[0] = np.inf
    return added
