"""The shadow loss against its own recent past: a jump, and a slow rise.

The pinned batch never changes, so its loss follows the weights alone: it falls, flattens and
wavers. The past is fitted by a line (Theil 1950, Sen 1968), which up to 29 % of outliers do not
move, and scattered around it with a σ from the median absolute deviation, times
√((1 + ρ)/(1 − ρ)) because neighbouring losses are correlated (ρ at lag one, of an AR(1) process).

Judged is upwards only, against the level where the line ends and never against its extrapolation:
a loss that flattens stays above that for ever. A slow rise is summed up (Page 1954) over the lowest
level of the last while, so that it does not become its own reference. Training on the same few
examples again and again (overfitting) raises the loss of others for as long as it goes on: a rise
is told once, and again only after the level was back where it had begun.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert

WINDOW: Final = 64  # evaluations that the line is fitted to
WARM_UP: Final = 24
NEWEST: Final = 16  # of them, whose level along the line is taken: a loss that flattens is no line
MEMORY: Final = 128  # evaluations whose lowest level a rise is summed over
BUDGET: Final = 1e-4  # false incidents per evaluation, of each of the two kinds
# In units of σ. Calibrated with benchmarks/calibrate_shadow.py, which says how.
JUMP: Final = 8.0
ALLOWANCE: Final = 1.75  # what each evaluation may lie above the lowest level
DRIFT: Final = 0.5  # of the sum in sound training, downwards: the allowance less the level's bias
CLIP: Final = 4.0  # that one evaluation adds to the sum at most: a single outlier is no rise
LEAST_SIGMA: Final = 1e-3  # of the loss itself: a change by less is nobody's concern
LEAST_OF_ZERO: Final = 1e-6  # σ of a loss that is learnt to nothing
NEW_LEVEL: Final = 8  # evaluations after which a level that stays is told and taken for normal
LR_ROSE: Final = 1.2  # times the lowest learning rate since the window began
_MAD_TO_SIGMA: Final = 1.4826
_MOST_CORRELATED: Final = 0.9

Floats = NDArray[np.float64]


def rise_limit(budget: float = BUDGET) -> float:
    """The sum at which a rise is told: exceeded once in 1/budget evaluations of sound training.

    Siegmund's approximation (1985) of the mean run length of a sum with drift −DRIFT and unit σ,
    solved by iteration.

    Args:
        budget: false incidents per evaluation, above 0 and below 1.
    """
    d, barrier = DRIFT, 1.0
    for _ in range(60):
        barrier = math.log(2 * d * d / budget + 2 * d * barrier + 1) / (2 * d)
    return max(barrier - 1.166, CLIP)


def fitted(values: Floats) -> tuple[float, float]:
    """The level at the end of the line through the values, and σ around the line.

    Args:
        values: one evaluation after the other, shape (n,), n of 3 or more.
    """
    places = np.arange(len(values), dtype=np.float64)
    low, high = np.triu_indices(len(values), 1)
    slope = float(np.median((values[high] - values[low]) / (places[high] - places[low])))
    flat = values - slope * places
    rest = flat - np.median(flat)
    end = float(np.median(flat[-NEWEST:]) + slope * places[-1])
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(rest)))
    return end, max(sigma * _inflation(rest, sigma), LEAST_SIGMA * abs(end), LEAST_OF_ZERO)


def _inflation(rest: Floats, sigma: float) -> float:
    """√((1 + ρ)/(1 − ρ)) with ρ of what is left, outliers cut off."""
    cut = np.clip(rest, -3 * sigma, 3 * sigma)
    square = float(cut @ cut)
    rho = float(cut[1:] @ cut[:-1]) / square if square > 0 else 0.0
    rho += (2 + 4 * rho) / len(rest)  # what fitting a line takes from it (Kendall 1954)
    rho = min(max(rho, 0.0), _MOST_CORRELATED)
    return math.sqrt((1 + rho) / (1 - rho))


class ShadowTrend:
    """Judges one evaluation after the other. A new attempt begins with a new one.

    Args:
        budget: false incidents per evaluation; None to tell only of losses that are not finite.
    """

    def __init__(self, budget: float | None = BUDGET) -> None:
        self._budget = budget
        self._limit = math.inf if budget is None else rise_limit(budget)
        self._jump = math.inf if budget is None else JUMP
        self._was_finite = True
        self._risen_from = -math.inf  # the level before the rise that was told
        self._lr: float | None = None  # the lowest since the window began
        self._begin(None)

    def judge(self, step: int, loss: float, lr: float | None = None) -> list[Alert]:
        """The alert of one evaluation, if it raises any.

        Args:
            step: the step after which it was evaluated.
            loss: of the pinned batch.
            lr: the learning rate. Where it rises, as at a warm restart, the loss may too: the past
                is forgotten.
        """
        if not math.isfinite(loss):
            return self._not_finite(step, loss)
        self._was_finite = True
        if lr is not None:
            if self._lr is not None and lr > LR_ROSE * self._lr:
                self._begin(lr)
            self._lr = lr if self._lr is None else min(lr, self._lr)
        if len(self._past) < WARM_UP:
            self._past.append(loss)
            return []
        return self._judged(step, loss)

    def _begin(self, lr: float | None) -> None:
        self._past: deque[float] = deque(maxlen=WINDOW)
        self._levels: deque[float] = deque(maxlen=MEMORY)
        self._lr, self._sum, self._rising, self._above = lr, 0.0, 0, 0

    def _judged(self, step: int, loss: float) -> list[Alert]:
        level, sigma = fitted(np.array(self._past))
        self._levels.append(level)
        if level <= self._risen_from:
            self._risen_from = -math.inf  # it is back
        jump = (loss - level) / sigma
        if jump > self._jump:
            return self._jumped(step, loss, level, jump)
        self._above = 0
        self._past.append(loss)
        lowest = min(self._levels)
        self._sum += min((loss - lowest) / sigma, CLIP) - ALLOWANCE
        if self._sum <= 0:
            self._sum, self._rising = 0.0, 0
            return []
        self._rising += 1
        if self._sum <= self._limit:
            return []
        total, rising = self._sum, self._rising
        self._begin(self._lr)
        standing = math.isfinite(self._risen_from)
        self._risen_from = self._risen_from if standing else lowest
        if standing:
            return []
        return [rise_alert(step, loss, lowest, total, self._limit, rising)]

    def _jumped(self, step: int, loss: float, level: float, score: float) -> list[Alert]:
        self._above += 1
        if self._above == 1:
            return [jump_alert(step, loss, level, score, self._jump)]
        if self._above >= NEW_LEVEL:
            self._begin(self._lr)
        return []

    def _not_finite(self, step: int, loss: float) -> list[Alert]:
        first, self._was_finite = self._was_finite, False
        if not first:
            return []
        detail = {"text": f"the loss of the pinned batch is {loss}"}
        return [Alert(step, "shadow_nonfinite", None, "", 1.0, 0.0, "suspect", detail)]


def jump_alert(step: int, loss: float, level: float, score: float, limit: float) -> Alert:
    """The alert for a loss far above the level of the evaluations before it."""
    text = (
        f"the loss of the pinned batch jumped from {level:.6g} to {loss:.6g}, {score:.3g} σ: the "
        "weights changed for the worse since the evaluation before"
    )
    detail = {"text": text, "loss": loss, "level": level}
    return Alert(step, "shadow_jump", None, "", score, limit, "suspect", detail)


def rise_alert(
    step: int, loss: float, level: float, score: float, limit: float, evaluations: int
) -> Alert:
    """The alert for a loss that has crept up.

    Args:
        evaluations: for how many it has been too high.
    """
    text = (
        f"the loss of the pinned batch has risen for {evaluations} evaluations, from {level:.6g} "
        f"to {loss:.6g}: overfitting or other data make a model unlearn this batch, a slow "
        "corruption of the weights does so, too; told once until it is back"
    )
    detail = {"text": text, "loss": loss, "level": level, "evaluations": evaluations}
    return Alert(step, "shadow_rise", None, "", score, limit, "suspect", detail)
