"""Losses of a run's log against those of a replay, at the precision that the log has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import numpy as np

from .sizes import Pair

Losses = Mapping[int, tuple[float | None, float | None]]
"""Step to loss and gradient norm; None for what was not logged."""

# The shortest decimal text of a float32 that reads back as the same has 9 digits at most, and of
# most numbers 8 or 9: a column without any such number was rounded when it was printed.
_EXACT_DIGITS: Final = 8


@dataclass(frozen=True)
class Precision:
    """How exactly a column of a log was printed.

    Attributes:
        digits: the most significant digits that one of its numbers has.
        decimals: the most behind the point.
    """

    digits: int
    decimals: int

    @property
    def exact(self) -> bool:
        """Whether float32 numbers were printed so that they read back as the same."""
        return self.digits >= _EXACT_DIGITS

    def same(self, logged: float, replayed: float) -> bool:
        """Whether a number may have been printed as that one."""
        if logged == replayed or (math.isnan(logged) and math.isnan(replayed)):
            return True
        if not (math.isfinite(logged) and math.isfinite(replayed)):
            return False
        if self.exact:
            with np.errstate(over="ignore"):
                return bool(np.float32(logged) == np.float32(replayed))
        return abs(logged - replayed) <= 0.5 * self._unit(logged) * (1 + 1e-6)

    def _unit(self, value: float) -> float:
        """Of the last digit printed: by decimals, or by digits where these leave fewer."""
        places = self.decimals
        if value:
            places = min(places, self.digits - 1 - math.floor(math.log10(abs(value))))
        return float(10.0**-places)

    def text(self) -> str:
        """In words."""
        if self.exact:
            return "printed in full: float32 numbers to the bit"
        return f"rounded to {self.decimals} decimals: no smaller difference shows"


def precision_of(values: Iterable[float]) -> Precision:
    """Of the numbers of a column, as far as they are finite."""
    digits = decimals = 0
    for value in values:
        if not math.isfinite(value):
            continue
        told = Decimal(repr(value)).normalize().as_tuple()
        digits = max(digits, len(told.digits))
        decimals = max(decimals, -int(told.exponent))
    return Precision(digits, decimals)


@dataclass(frozen=True)
class LossDifference:
    """The first step at which a logged number is not the one replayed.

    Attributes:
        what: "loss" or "gradient norm".
        pair: both numbers.
    """

    what: str
    pair: Pair


@dataclass(frozen=True)
class LossComparison:
    """Steps `first` to `last` of a log against a replay.

    Attributes:
        steps: that both have a loss of.
        norms: that both have a gradient norm of.
        difference: the first one, or None.
        loss, norm: how the log was printed.
        pairs: the losses of `steps`.
    """

    first: int
    last: int
    steps: tuple[int, ...]
    norms: tuple[int, ...]
    difference: LossDifference | None
    loss: Precision
    norm: Precision
    pairs: tuple[Pair, ...]


def compare_losses(logged: Losses, replayed: Losses, first: int, last: int) -> LossComparison:
    """Compare what both have of the steps `first` to `last`."""
    columns = []
    for column in (0, 1):
        precision = precision_of(x for row in logged.values() if (x := row[column]) is not None)
        pairs = [
            Pair(step, one, other)
            for step in sorted(logged.keys() & replayed.keys())
            if first <= step <= last
            and (one := logged[step][column]) is not None
            and (other := replayed[step][column]) is not None
        ]
        columns.append((precision, pairs))
    (loss, losses), (norm, norms) = columns
    found = [
        LossDifference(what, pair)
        for what, precision, pairs in (("loss", loss, losses), ("gradient norm", norm, norms))
        for pair in pairs
        if not precision.same(pair.run, pair.replay)
    ]
    return LossComparison(
        first,
        last,
        steps=tuple(pair.step for pair in losses),
        norms=tuple(pair.step for pair in norms),
        difference=min(found, key=lambda one: one.pair.step, default=None),
        loss=loss,
        norm=norm,
        pairs=tuple(losses),
    )
