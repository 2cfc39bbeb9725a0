"""Which checkpoints to keep against corruption that is seen late.

A corruption that is seen L after it came needs a checkpoint older than L; the newest such one is
gone back to, and what lies between, the excess, is lost for nothing. With n(t) checkpoints kept per
second of age the mean excess is ∫ f/(2n) dt. For a given number K = ∫n it is least where n ∝ √f
(Lagrange), and then (∫√f)²/2K. With ρ incidents a second, work that costs C a second, and c for
keeping one checkpoint for a second, ρ·C·(∫√f)²/2K + c·K is least at K* = √(ρ·C·(∫√f)²/2c).

No more can be kept than were saved: n is at most one per interval. Point by point that leaves
n = min(1/interval, K*·√f/∫√f).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from .latency import Array, Latency

MOST: Final = 1_000_000  # checkpoints
_PHASES: Final = 32  # moments between two saves that a mean is taken over


def root_integral(latency: Latency) -> float:
    """∫√f dt, in √s."""
    return float(latency.roots.sum())


def mean_excess(latency: Latency, count: float) -> float:
    """(∫√f)²/2K in seconds: the least possible, were saves as close as one likes."""
    return root_integral(latency) ** 2 / (2 * count)


def best_count(latency: Latency, incidents: float, work: float, keeping: float) -> float:
    """K*: the number to keep at which losses by corruption and storage together cost least.

    Args:
        latency: f.
        incidents: ρ, how many a second are seen late.
        work: C, what a second of work costs.
        keeping: c, what keeping one checkpoint costs a second, in the same currency.
    """
    return root_integral(latency) * math.sqrt(incidents * work / (2 * keeping))


def possible_count(latency: Latency, count: float, interval: float) -> float:
    """∫ min(1/interval, K·√f/∫√f) dt: what of K is left where saves are `interval` s apart."""
    wanted = latency.roots * (count / root_integral(latency))
    return float(np.minimum(wanted, latency.widths / interval).sum())


def ages(density: Latency, count: int, interval: float) -> Array:
    """The ages at which to keep checkpoints, spaced by √f where saves are frequent enough.

    Args:
        density: of the detection latency.
        count: how many to keep, 1 or more, the newest among them.
        interval: seconds between two saves.

    Returns:
        float64 (k,), seconds, increasing: as they are right after a save. The first is 0, the
        newest one, which is kept for failures. The last is as old as the longest latency, or
        older, if k > 1. All are multiples of the interval. k is less than `count` only where all
        saves of that time are kept.

    Raises:
        ValueError: a count or an interval that is none, or one too short for whole float64.
    """
    if not 1 <= count <= MOST or not (density.longest / 2**52 < interval < math.inf):
        raise ValueError(f"{count} checkpoints, {interval} s apart")
    lowest = max(1, math.ceil(density.edges[0] / interval - 1e-9))
    highest = max(1, math.ceil(density.longest / interval - 1e-9))
    others = min(count - 1, highest - lowest + 1)
    if others == 0:
        return np.zeros(1)
    cumulative = np.concatenate([[0.0], np.cumsum(_spread(density, others, interval))])
    targets = np.arange(1, others + 1) / others * cumulative[-1]
    places = np.ceil(np.interp(targets, cumulative, density.edges) / interval - 1e-9)
    # two that fell into one interval move apart: up, and then down from the highest
    steps = np.arange(others)
    places = np.maximum.accumulate(np.maximum(places, lowest) - steps) + steps
    left = others - 1 - steps
    places = np.minimum(places, highest - left)
    return np.concatenate([[0.0], places * interval])


def _spread(density: Latency, count: float, interval: float) -> Array:
    """How many of `count` lie in each cell: ∝ √f, and at most one an interval."""
    most = density.widths / interval
    if count >= most.sum():
        return most
    low, high = -700.0, 700.0  # ln of the factor
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(most, density.roots * math.exp(middle)).sum() < count:
            low = middle
        else:
            high = middle
    return np.minimum(most, density.roots * math.exp(high))


def excess(density: Latency, kept: Array, interval: float) -> tuple[float, float]:
    """What is lost beyond the latency when going back, on the mean over the time between saves.

    Args:
        density: of the detection latency.
        kept: ages right after a save, in seconds, increasing.
        interval: seconds between two saves: by the next one all are so much older.

    Returns:
        the mean excess in seconds over the corruptions older than which one is kept; and the
        share of corruptions for which none is.
    """
    lost, missing = 0.0, 0.0
    for phase in (np.arange(_PHASES) + 0.5) / _PHASES * interval:
        now = kept + phase
        share, moment = density.within(np.concatenate([[0.0], now]))
        lost += float(np.sum(now * np.diff(share)) - moment[-1])
        missing += 1 - float(share[-1])
    covered = _PHASES - missing
    return (lost / covered if covered > 1e-9 * _PHASES else math.inf), max(missing / _PHASES, 0.0)
