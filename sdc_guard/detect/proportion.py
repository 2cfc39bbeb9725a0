"""How much a count proves: intervals and tails of a binomial, without a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

Z_95: Final = 1.959963984540054  # the normal quantile of a two-sided interval of 95 %
_NEGLIGIBLE: Final = 1e-20  # share of a sum, below what a double can show of thousands of them


def wilson(hits: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a probability (Probable Inference, 1927); (0, 1) without a trial.

    Args:
        hits: 0 to `trials`.
        trials: how often it was tried.
        z: quantile of the normal distribution; that of 95 % by default.
    """
    if trials <= 0:
        return 0.0, 1.0
    share, square = hits / trials, z * z
    middle = share + square / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def at_least(hits: int, trials: int, probability: float) -> float:
    """The probability of `hits` or more in `trials`, each with `probability`.

    What it takes grows with the expected number of hits, not with the number of trials.
    """
    if hits <= 0:
        return 1.0
    if probability <= 0 or hits > trials:
        return 0.0
    if probability >= 1:
        return 1.0
    return min(1.0, math.fsum(_terms(hits, trials, probability)))


def _terms(hits: int, trials: int, probability: float) -> Iterator[float]:
    mode, total = (trials + 1) * probability, 0.0
    for count in range(hits, trials + 1):
        term = math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(probability)
            + (trials - count) * math.log1p(-probability)
        )
        yield term
        total += term
        if count > mode and term <= _NEGLIGIBLE * total:
            return  # beyond the mode they only fall
