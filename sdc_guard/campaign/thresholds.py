"""Thresholds for a budget of false incidents, set on some healthy runs and judged on others.

Alarms that are near each other are one incident: it is incidents that wake people, and that a
budget counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..detect.peaks import Tail, pareto
from ..detect.proportion import wilson
from .series import Floats

BUDGET: Final = 1e-4  # false incidents a step: one in 10,000
GAP: Final = 50  # steps between alarms of one incident, as in detect.incidents
ENOUGH: Final = 5  # false incidents that the budget must allow, for the data alone to say where
SHARE: Final = 0.02  # of the steps, that a tail is fitted to
FEWEST: Final = 20  # different ones among them, below which there is no tail to fit
# From so few values the shape is uncertain: no end close to the largest, and a variance.
_SHAPES: Final = (-0.2, 0.5)

Method = Literal["counted", "tail", "largest", "published"]


@dataclass(frozen=True)
class Threshold:
    """Above which a score is an alarm.

    Attributes:
        value: the threshold; infinite if no finite one keeps the budget.
        method: "counted", the budget's incidents were seen in the data; "tail", a generalised
            Pareto distribution was fitted to the largest scores; "largest", the largest score, as
            there were too few different ones for a tail, and infinite if there was none;
            "published", that of the source.
        steps: that it was set on.
    """

    value: float
    method: Method
    steps: int


@dataclass(frozen=True)
class FalseAlarms:
    """What a threshold did to healthy runs.

    Attributes:
        incidents: of alarms at most GAP steps from each other.
        steps: that were judged.
    """

    incidents: int
    steps: int

    @property
    def interval(self) -> tuple[float, float]:
        """Of incidents a step, 95 % (Wilson)."""
        return wilson(min(self.incidents, self.steps), self.steps)

    @property
    def rate(self) -> float:
        """Incidents a step; NaN without a step."""
        return self.incidents / self.steps if self.steps else float("nan")


def peaks(scores: Floats) -> Floats:
    """The largest score of each step, shape (steps,); −∞ where there is none.

    Args:
        scores: shape (steps, columns).
    """
    largest: Floats = np.where(np.isnan(scores), -np.inf, scores).max(axis=1, initial=-np.inf)
    return largest


def incidents(steps: Floats | Sequence[int], gap: int = GAP) -> int:
    """How many incidents alarms at these steps, in order, make."""
    at = np.asarray(steps, dtype=np.int64)
    return int(at.size > 0) + int((np.diff(at) > gap).sum())


def joined(runs: Sequence[Floats], gap: int = GAP) -> Floats:
    """The peaks of several runs in a row, so far apart that no incident goes over two of them."""
    apart = np.full(gap, -np.inf)
    return np.concatenate([part for run in runs for part in (run, apart)] or [apart])


def clusters(peak: Floats, above: float, gap: int = GAP) -> Floats:
    """The largest score of each incident that a threshold would make.

    Args:
        peak: of each step, as from `joined`.
        above: the threshold.
        gap: steps between alarms of one incident.
    """
    at = np.flatnonzero(peak > above)
    if not at.size:
        return np.empty(0)
    first = np.flatnonzero(np.diff(at, prepend=at[0] - gap - 1) > gap)
    largest: Floats = np.maximum.reduceat(peak[at], first)
    return largest


def judge(runs: Sequence[Floats], threshold: float) -> FalseAlarms:
    """Count a threshold's false incidents.

    Args:
        runs: of each healthy run, the peaks of its steps.
        threshold: in the unit of the peaks.
    """
    return FalseAlarms(len(clusters(joined(runs), threshold)), sum(map(len, runs)))


def threshold_for(runs: Sequence[Floats], budget: float = BUDGET) -> Threshold:
    """The lowest threshold whose expected false incidents keep the budget.

    Where the data are long enough for several incidents to be allowed in them, they are counted.
    Otherwise the tail is extrapolated: a generalised Pareto distribution is fitted to the scores
    above a high one (Davison and Smith, 1990). That gives the steps above a threshold; there are
    fewer incidents, by the extremal index of the scores.

    Args:
        runs: of each healthy run, the peaks of its steps; longer is better.
        budget: false incidents a step.
    """
    steps, peak = sum(map(len, runs)), joined(runs)
    known = peak[peak > -np.inf]
    if not known.size:
        return Threshold(float("inf"), "largest", steps)  # of a detector that never had a score
    allowed = budget * steps
    if allowed >= ENOUGH:
        return Threshold(_lowest(peak, int(allowed)), "counted", steps)
    start = float(np.quantile(known, 1 - SHARE, method="lower"))
    above = peak[peak > start]
    if len(np.unique(above[np.isfinite(above)])) < FEWEST:
        return Threshold(float(peak.max()), "largest", steps)
    index = extremal_index(np.flatnonzero(peak > start))
    return Threshold(_extrapolated(above, start, allowed, index), "tail", steps)


def extremal_index(at: NDArray[np.int64] | Sequence[int]) -> float:
    """Clusters for each step above a high threshold: 1 if they come independently.

    The intervals estimator of Ferro and Segers (2003), from the times between such steps.

    Args:
        at: their numbers, in order; at least two.
    """
    times = np.diff(np.asarray(at, dtype=np.float64))
    if times.max(initial=0.0) <= 2:
        first, second = times.sum(), np.square(times).sum()
    else:
        first, second = (times - 1).sum(), ((times - 1) * (times - 2)).sum()
    if not len(times) or second <= 0:
        return 1.0
    return float(min(1.0, 2 * first * first / (len(times) * second)))


def _lowest(peak: Floats, most: int) -> float:
    """The lowest score at which, and beyond which, there are no more than `most` incidents."""
    values = np.unique(peak[peak > -np.inf])
    lowest = float(values[-1])
    for value in values[len(values) // 2 :][::-1]:  # below, all steps are one incident
        if len(clusters(peak, float(value))) > most:
            break
        lowest = float(value)
    return lowest


def _extrapolated(above: Floats, start: float, allowed: float, index: float) -> float:
    """Above which `allowed` incidents are expected, in as many steps as these scores are of."""
    finite = above[np.isfinite(above)]
    allowed -= len(above) - len(finite)  # the infinite ones are false whatever the threshold
    if allowed <= 0:
        return float("inf")
    scale, shape = pareto(finite - start)
    drawn = min(max(shape, _SHAPES[0]), _SHAPES[1])
    if drawn != shape:
        scale = float((finite - start).mean()) * (1 - drawn)  # the mean of it is σ/(1 − ξ)
    return Tail(start, 1.0, scale, drawn).exceeded_with(allowed / (index * len(finite)))
