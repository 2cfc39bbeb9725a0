"""Where the first corrupt checkpoint is, by the answers of an oracle that errs: plain arithmetic.

Hypothesis k of n + 1: checkpoint k is the first corrupt one; n: none is. The oracle calls a clean
one corrupt with the rate fp, and a corrupt one clean with the rate fn. A rate that is not known
has a Beta prior, and is integrated out in closed form (beta-binomial): for each hypothesis only
the number of answers of either kind before and from k on counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Priors of the rates where they are not given: means of 0.05 and 0.2, worth four answers and
# less than that. An oracle that is wrong more often than right would be none.
FALSE_POSITIVE_PRIOR: Final = (0.5, 9.5)
FALSE_NEGATIVE_PRIOR: Final = (1.0, 4.0)


@dataclass(frozen=True)
class Rate:
    """A rate of errors: known, or with a Beta(a, b) prior.

    Attributes:
        known: the rate, in (0, 1); None if it is not known.
        a, b: the prior of one that is not known.
    """

    known: float | None
    a: float
    b: float

    @classmethod
    def false_positive(cls, known: float | None = None) -> Rate:
        """Of calling a clean checkpoint corrupt."""
        return cls(known, *FALSE_POSITIVE_PRIOR)

    @classmethod
    def false_negative(cls, known: float | None = None) -> Rate:
        """Of calling a corrupt checkpoint clean."""
        return cls(known, *FALSE_NEGATIVE_PRIOR)

    def log_likelihood(self, wrong: Floats, right: Floats) -> Floats:
        """log P of so many wrong and right answers, up to a constant."""
        if self.known is not None:
            return wrong * math.log(self.known) + right * math.log1p(-self.known)
        return _log_beta(self.a + wrong, self.b + right)  # less one of the prior's, for all alike

    def mean(self, wrong: Floats, right: Floats) -> Floats:
        """The expected rate after so many wrong and right answers."""
        if self.known is not None:
            return np.full(wrong.shape, self.known)
        return (self.a + wrong) / (self.a + self.b + wrong + right)


@dataclass(frozen=True)
class Posterior:
    """What the answers say.

    Attributes:
        weights: [n + 1] probability of each hypothesis; sums to 1.
        fp, fn: [n + 1] expected rates under each hypothesis.
    """

    weights: Floats
    fp: Floats
    fn: Floats

    @classmethod
    def of(cls, corrupt: Floats, clean: Floats, fp: Rate, fn: Rate) -> Posterior:
        """The posterior over a uniform prior.

        Args:
            corrupt, clean: [n] how often each checkpoint was called so.
            fp, fn: the oracle's rates.
        """
        wrong_before, right_before = _sums(corrupt), _sums(clean)
        right_after, wrong_after = corrupt.sum() - wrong_before, clean.sum() - right_before
        log = fp.log_likelihood(wrong_before, right_before)
        log = log + fn.log_likelihood(wrong_after, right_after)
        weights = np.exp(log - log.max())
        return cls(
            weights / weights.sum(),
            fp.mean(wrong_before, right_before),
            fn.mean(wrong_after, right_after),
        )


def gains(rows: Floats, posterior: Posterior) -> Floats:
    """[n] how many bits about the hypothesis an answer at each place is expected to bring.

    Args:
        rows: [m, n + 1] joint probabilities of what may be answered before it and the hypotheses;
            sums to 1. [1, n + 1], the posterior's weights, if nothing is.
    """
    said = np.zeros(rows.shape[1] - 1)
    for if_corrupt, if_clean in _answers(posterior):
        said += _entropy_at_each_place(rows * if_corrupt, rows * if_clean)
    before = _x_log_x(rows.sum(axis=1)) - _x_log_x(rows).sum(axis=1)
    result: Floats = (before.sum() - said) / np.log(2)
    return result


def split(rows: Floats, posterior: Posterior, place: int) -> Floats:
    """[2 m, n + 1] the rows after an answer at `place`, corrupt or clean."""
    from_place = np.arange(rows.shape[1]) <= place  # the hypotheses by which it is corrupt
    return np.concatenate(
        [
            rows * np.where(from_place, if_corrupt, if_clean)
            for if_corrupt, if_clean in _answers(posterior)
        ]
    )


def _answers(posterior: Posterior) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """P(called corrupt), and P(called clean), of a corrupt place and of a clean one."""
    return ((1 - posterior.fn, posterior.fp), (posterior.fn, 1 - posterior.fp))


def _entropy_at_each_place(if_corrupt: Floats, if_clean: Floats) -> Floats:
    """[n] Σ over rows of Z·H, for one answer: Z its probability, H the entropy that it leaves.

    Place i is corrupt by the hypotheses k ≤ i: sums from the left, and from the right.
    """
    total = np.cumsum(if_corrupt, axis=1)[:, :-1] + _from_right(if_clean)
    logs = np.cumsum(_x_log_x(if_corrupt), axis=1)[:, :-1] + _from_right(_x_log_x(if_clean))
    result: Floats = (_x_log_x(total) - logs).sum(axis=0)
    return result


def _from_right(values: Floats) -> Floats:
    """[m, n] of [m, n + 1]: the sum of what comes after each place."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1][:, 1:]


def _sums(values: Floats) -> Floats:
    """[n + 1] the sum before each place, and of all."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_log_x(values: Floats) -> Floats:
    result: Floats = values * np.log(np.maximum(values, 1e-300))
    return result


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _log_beta(a: Floats, b: Floats) -> Floats:
    result: Floats = _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)
    return result
