"""How often to save: Young's and Daly's optimum, and what is lost by failures.

The model is Daly's: failures come at random, independently, with a constant rate 1/M (Poisson), at
any moment, also while the training recovers; after one the training goes on from the newest
complete checkpoint. τ is the work between two checkpoints, δ how long the training stands still
for one, R how long it takes from a failure until the training runs again, all in seconds.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974, 530-531; J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006, 303-312.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def young(stall: float, mtbf: float) -> float:
    """Young's interval √(2δM), in seconds: the first order.

    It holds for δ much smaller than M. At δ = M/2 it is M, twice what is best; see `daly`.
    """
    return math.sqrt(2 * stall * mtbf)


def daly(stall: float, mtbf: float) -> float:
    """Daly's optimum of the work τ between two checkpoints, in seconds (2006).

    √(2δM)·(1 + ⅓√(δ/2M) + ⅑·δ/2M) − δ for δ < 2M, and M from there on. The first order of the
    same, √(2δM) − δ, is given for δ < M/2 only; `in_domain` says where a plan is doubtful.
    """
    if stall >= 2 * mtbf:
        return mtbf
    ratio = stall / (2 * mtbf)
    return young(stall, mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def in_domain(stall: float, mtbf: float) -> bool:
    """Whether δ < M/2: beyond it more failures strike checkpoints than work, whatever τ is."""
    return stall < mtbf / 2


def useful_share(
    work: float, stall: float, mtbf: float, recovery: float, pending: float = 0.0
) -> float:
    """Share of the wall time that becomes work which is not lost again, 0 to 1.

    Daly's equation for the wall time of one interval, M·e^(R/M)·(e^((τ+δ)/M) − 1), inverted. A
    checkpoint that is complete only W after its snapshot (`pending`) acts as if the recovery took
    W longer: after a failure n of them are complete with probability e^(−(R + W + n(τ+δ))/M).

    Args:
        work, stall, mtbf, recovery: τ, δ, M, R in seconds.
        pending: W in seconds; 0 where the training waits for the write.
    """
    period = (work + stall) / mtbf
    if period > 700:  # e^700 is near the largest float64
        return 0.0
    return work / mtbf * math.exp(-(recovery + pending) / mtbf) / math.expm1(period)


def lost_work(period: float, mtbf: float, pending: float = 0.0) -> float:
    """Mean time between the newest complete snapshot and a failure, in seconds.

    M − T/(e^(T/M) − 1) for the period T = τ + δ, about T/2 where T is much smaller than M; and
    the time in which a snapshot is not complete yet.
    """
    ratio = period / mtbf
    if ratio < 1e-4:  # the next term of the series is T·ratio/12
        return period / 2 - period * ratio / 12 + pending
    within = 0.0 if ratio > 700 else period / math.expm1(ratio)
    return mtbf - within + pending


@dataclass(frozen=True)
class Interval:
    """How often to save.

    Attributes:
        work: training between the end of one stall and the begin of the next, seconds.
        stall: how long the training stands still for a checkpoint, seconds.
        optimum: Daly's optimum of `work`, seconds.
        least: the shortest period that the writing allows, seconds.
        fixed: whether the period was given, and not chosen.
    """

    work: float
    stall: float
    optimum: float
    least: float
    fixed: bool

    @property
    def period(self) -> float:
        """From one checkpoint to the next, seconds."""
        return self.work + self.stall

    @property
    def best_period(self) -> float:
        """What the period would be if writing took no bandwidth."""
        return self.optimum + self.stall

    @property
    def limited(self) -> bool:
        """Whether a write would not be finished before the next one begins, at the optimum."""
        return self.best_period < self.least * (1 - 1e-9)


def choose(stall: float, mtbf: float, least: float, period: float | None = None) -> Interval:
    """The best interval in which a write finishes before the next begins.

    The useful share has one maximum, so that where the optimum is too short the shortest
    possible period is the best one.

    Args:
        stall, mtbf: δ and M in seconds.
        least: how long a write takes, seconds.
        period: the period to be taken instead of the best one, seconds.

    Raises:
        ValueError: the period leaves no work between two checkpoints, or is shorter than a write.
    """
    optimum = daly(stall, mtbf)
    if period is None:
        return Interval(max(optimum, least - stall), stall, optimum, least, fixed=False)
    if period <= stall or period < least:
        raise ValueError("a period shorter than its checkpoint")
    return Interval(period - stall, stall, optimum, least, fixed=True)
