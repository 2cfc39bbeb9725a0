"""Peaks over threshold: where to set an alarm for a budget of false ones.

Above a high quantile u of a stream, what exceeds u is close to a generalised Pareto distribution,
whatever the stream's own distribution is (Balkema & de Haan 1974, Pickands 1975):

    P(X > x) = p · (1 + ξ (x − u) / σ)^(−1/ξ),   p = P(X > u).

Scale σ and shape ξ are fitted by probability-weighted moments (Hosking & Wallis 1987), which need
no search and do well for few values; solved for x, that is the score which a healthy step exceeds
with a given probability (Siffer et al. 2017). The shape of few exceedances is uncertain: it is
drawn towards that of a calibrated tail, as if `PRIOR_PEAKS` of that had been seen, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHARE: Final = 0.05  # of the steps are peaks: u is the 95 % quantile
KEPT: Final = 4096  # newest steps that the tail is fitted to
FEWEST: Final = 256  # steps before which the calibrated tail holds
REFIT: Final = (64, 512)  # steps from one fit to the next: an eighth of those seen, within these
PRIOR_PEAKS: Final = 100
# A shape below 0 has an end, which few values place too low; from 1/2 on the moments that the fit
# is made of have no variance.
_SHAPES: Final = (0.0, 0.5)


@dataclass(frozen=True)
class Tail:
    """The upper tail of a distribution.

    Attributes:
        level: u, in the unit of the values.
        share: p, the probability of a value above u.
        scale: σ, in the unit of the values.
        shape: ξ; 0 for an exponential tail.
    """

    level: float
    share: float
    scale: float
    shape: float

    def exceeded_with(self, probability: float) -> float:
        """The value that is exceeded with this probability; u if that is no less than p."""
        if probability >= self.share:
            return self.level
        ratio = self.share / probability
        if abs(self.shape) < 1e-9:
            return self.level + self.scale * math.log(ratio)
        grown = math.exp(self.shape * math.log(ratio))
        return self.level + self.scale / self.shape * (grown - 1)

    def of_the_largest(self, count: int) -> Tail:
        """Tail of the largest of `count` independent values of this one, well above u.

        P(max > x) ≈ count · P(X > x) where that is small: a larger count moves u up instead of p,
        so that p stays a probability.
        """
        if count <= 1:
            return self
        # σ grows with the threshold: σ' = σ + ξ (u' − u)
        level = self.exceeded_with(self.share / count)
        return Tail(level, self.share, self.scale + self.shape * (level - self.level), self.shape)


def pareto(excesses: Floats) -> tuple[float, float]:
    """Scale and shape (σ, ξ) of a generalised Pareto distribution with these values.

    By probability-weighted moments, plotting positions (i − 0.35)/n (Hosking & Wallis 1987). Their
    k is −ξ.

    Args:
        excesses: at least two, ≥ 0.
    """
    ordered = np.sort(excesses)
    first = float(ordered.mean())
    weights = 1 - (np.arange(1, len(ordered) + 1) - 0.35) / len(ordered)
    second = float((weights * ordered).mean())
    rest = first - 2 * second
    if rest <= 0:  # all of the weight on few values: no finite mean would fit
        return first, _SHAPES[1]
    return 2 * first * second / rest, 2 - first / rest


def tail_of(values: Floats, prior: Tail, share: float = SHARE) -> Tail:
    """The upper tail of these values, its shape drawn towards the prior's.

    Args:
        values: finite, shape (n,).
        prior: of the same kind of values.
        share: of the values that count as peaks.
    """
    level = float(np.quantile(values, 1 - share))
    excesses = values[values > level] - level
    if len(excesses) < 2:  # mostly ties
        return Tail(level, share, prior.scale, prior.shape)
    _, shape = pareto(excesses)
    shape = float(np.clip(shape, *_SHAPES))
    count = len(excesses)
    shape = (count * shape + PRIOR_PEAKS * prior.shape) / (count + PRIOR_PEAKS)
    scale = float(excesses.mean()) * (1 - shape)  # the mean of the distribution is σ/(1 − ξ)
    return Tail(level, count / len(values), scale, shape)


class PeakThreshold:
    """The threshold of one stream of scores for a budget, renewed as steps pass.

    What exceeds it is taken in as if it had just reached it, and only where it begins: a lasting
    fault must not lift the threshold above itself, but a stream which exceeds it again and again
    at steps far apart is not faulty, its tail is heavier than was known.

    Args:
        budget: probability with which a healthy step may exceed it; None for never.
        prior: tail that holds until `FEWEST` steps have passed.
        lowest: the threshold is never below this: what is smaller is not worth telling, be it
            ever so rare.
    """

    def __init__(self, budget: float | None, prior: Tail, lowest: float = 0.0) -> None:
        self._budget, self._prior, self._lowest = budget, prior, lowest
        self._values = np.full(KEPT, np.nan)
        self._count, self._due = 0, FEWEST
        self.tail = prior
        self.value = math.inf if budget is None else self._limit(budget)

    def take(self, peaks: Floats) -> None:
        """Take in the largest score of each step; NaN where there was none.

        Args:
            peaks: shape (steps,), in the order of the steps.
        """
        if self._budget is None:
            return
        finite = peaks[np.isfinite(peaks)]
        if not finite.size:
            return
        finite = np.minimum(finite[-KEPT:], self.value)
        self._values[_places(self._count, len(finite))] = finite
        self._count += len(finite)

    def renew(self) -> bool:
        """Fit the tail again, if enough has been seen since the last time; whether it was."""
        if self._budget is None or self._count < self._due:
            return False
        self._due = self._count + min(max(self._count // 8, REFIT[0]), REFIT[1])
        self.tail = tail_of(self._values[: min(self._count, KEPT)], self._prior)
        self.value = self._limit(self._budget)
        return True

    def _limit(self, budget: float) -> float:
        return max(self._lowest, self.tail.exceeded_with(budget))

    def remember(self, steps: int) -> tuple[Any, ...]:
        """What `go_back` needs to undo `take` of as many steps."""
        places = _places(self._count, min(steps, KEPT))
        values = self._values[places].copy()
        return self._count, self._due, self.tail, self.value, places, values

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Undo what was taken in since."""
        self._count, self._due, self.tail, self.value, places, values = remembered
        self._values[places] = values


def _places(first: int, count: int) -> slice | NDArray[np.int64]:
    """Of the newest values, in one piece where they are."""
    place = first % KEPT
    if place + count <= KEPT:
        return slice(place, place + count)
    return (place + np.arange(count)) % KEPT
