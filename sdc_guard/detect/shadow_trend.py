"""The shadow loss against its own recent past: a jump, and a slow rise.

The pinned batch never changes, so its loss follows the weights alone: it falls, flattens and
wavers. Judged is upwards only, and against medians of losses that were seen: never against a line
continued, below which a loss that flattens cannot follow. A loss that never rises raises nothing.

Only the noise is that around a line (Theil 1950, Sen 1968), which up to 29 % of outliers do not
move: the median absolute deviation, times √((1 + ρ)/(1 − ρ)) because neighbouring losses are
correlated (ρ at lag one, of an AR(1) process). Positive losses are compared by their logarithms,
because a loss that is learnt to nothing wavers by a share of itself.

A slow rise is summed up (Page 1954) over the lowest level of the last while, so that it does not
become its own reference, and told once while it stands.
"""

from __future__ import annotations

import math
from collections import deque
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert

WINDOW: Final = 64  # evaluations that the line is fitted to
WARM_UP: Final = 24
LEVEL_OF: Final = 16  # evaluations whose median is the level that a rise is summed over
JUST_BEFORE: Final = 5  # evaluations whose median a jump starts from
MEMORY: Final = 128  # evaluations whose lowest level a rise is summed over
BUDGET: Final = 1e-4  # false incidents per evaluation, of each of the two kinds
# In units of σ. Calibrated with benchmarks/calibrate_shadow.py, which says how.
JUMP: Final = 8.0
ALLOWANCE: Final = 2.0  # what each evaluation may lie above the lowest level
DRIFT: Final = 0.5  # of the sum in sound training, downwards, at least: the level is biased low
CLIP: Final = 4.0  # that one evaluation adds to the sum at most: a single outlier is no rise
# Evaluations of a rise over which σ stays as it was, because the bend where it began adds to σ. A
# rise that was told stands for as long as that σ or the present one says so.
HELD: Final = 16
LEAST_SIGMA: Final = 1e-3  # of the loss itself: a change by less is nobody's concern
LEAST_OF_ZERO: Final = 1e-6  # σ of a loss that is learnt to nothing
NEW_LEVEL: Final = 8  # evaluations after which a level that stays is told and taken for normal
LR_ROSE: Final = 1.2  # times the lowest learning rate since the window began
_MAD_TO_SIGMA: Final = 1.4826
_MOST_CORRELATED: Final = 0.9
_LOG_OF_ZERO: Final = math.log(LEAST_OF_ZERO)

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
    """Where a line through the values is at the next place, and σ around it.

    Args:
        values: one evaluation after the other, shape (n,), n of 3 or more.
    """
    places, low, high = _pairs(len(values))
    slope = float(np.median((values[high] - values[low]) / (high - low)))
    flat = values - slope * places
    middle = float(np.median(flat))
    rest = flat - middle
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(rest)))
    return middle + slope * len(values), sigma * _inflation(rest, sigma)


@lru_cache(maxsize=1)  # one, because the window soon has its full length
def _pairs(n: int) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """The places of n values, and the earlier and the later one of each pair."""
    low, high = np.triu_indices(n, 1)
    return np.arange(n, dtype=np.float64), low, high


def _inflation(rest: Floats, sigma: float) -> float:
    """√((1 + ρ)/(1 − ρ)) with ρ of what is left, outliers cut off."""
    cut = np.clip(rest, -3 * sigma, 3 * sigma)
    square = float(cut @ cut)
    rho = float(cut[1:] @ cut[:-1]) / square if square > 0 else 0.0
    rho += (2 + 4 * rho) / len(rest)  # what fitting a line takes from it (Kendall 1954)
    rho = min(max(rho, 0.0), _MOST_CORRELATED)
    return math.sqrt((1 + rho) / (1 - rho))


class Scale:
    """What a difference of two losses is in σ, of logarithms where all of the past is positive.

    Args:
        past: losses, one evaluation after the other, shape (n,), n of 3 or more.
    """

    def __init__(self, past: Floats) -> None:
        self._logarithms = bool(past.min() > 0)
        values = np.log(np.maximum(past, LEAST_OF_ZERO)) if self._logarithms else past
        self._next, self._sigma = fitted(values)

    def _of(self, loss: float) -> float:
        return math.log(max(loss, LEAST_OF_ZERO)) if self._logarithms else loss

    def _rise(self, value: float, level: float) -> float:
        """In σ, which is at least a share of the level."""
        if self._logarithms:
            least = max(LEAST_SIGMA, LEAST_OF_ZERO / math.exp(max(level, _LOG_OF_ZERO)))
        else:
            least = max(LEAST_SIGMA * abs(level), LEAST_OF_ZERO)
        return (value - level) / max(self._sigma, least)

    def sigmas(self, loss: float, level: float) -> float:
        """By how many σ a loss lies above a level."""
        return self._rise(self._of(loss), self._of(level))

    def above_line(self, loss: float) -> float:
        """By how many σ a loss lies above the line through the past."""
        return self._rise(self._of(loss), self._next)


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
        self._stands = False  # a rise that was told

    def _judged(self, step: int, loss: float) -> list[Alert]:
        past = np.array(self._past)
        scale = Scale(past)
        before = float(np.median(past[-JUST_BEFORE:]))
        # a steady rise follows the line, which is above what was before, and is no jump
        jump = min(scale.sigmas(loss, before), scale.above_line(loss))
        if jump > self._jump:
            return self._jumped(step, loss, before, jump)
        self._above = 0
        self._past.append(loss)
        self._levels.append(float(np.median(past[-LEVEL_OF:])))
        lowest = min(self._levels)
        if not (self._stands or 0 < self._rising <= HELD):
            self._scale = scale
        high = self._scale.sigmas(loss, lowest)
        if self._stands:
            high = max(high, scale.sigmas(loss, lowest))
        self._sum += min(high, CLIP) - ALLOWANCE
        return self._summed(step, loss, lowest)

    def _summed(self, step: int, loss: float, lowest: float) -> list[Alert]:
        if self._sum <= 0:
            self._sum, self._rising, self._stands = 0.0, 0, False
            return []
        self._rising += 1
        if self._sum <= self._limit:
            return []
        total, told = self._sum, self._stands
        self._sum, self._stands = self._limit, True  # no higher, or it would stand for ever
        if told:
            return []
        return [rise_alert(step, loss, lowest, total, self._limit, self._rising)]

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
        level: the lowest median of LEVEL_OF evaluations among the last MEMORY.
        evaluations: for how many it has been too high.
    """
    text = (
        f"the loss of the pinned batch has risen from {level:.6g} (its lowest level lately, the "
        f"median of {LEVEL_OF} evaluations) to {loss:.6g} and has been too high for {evaluations} "
        "evaluations: overfitting or a shift of the data does this, and so does a slow corruption "
        "of the weights. Told once while it stands"
    )
    detail = {"text": text, "loss": loss, "level": level, "evaluations": evaluations}
    return Alert(step, "shadow_rise", None, "", score, limit, "suspect", detail)
