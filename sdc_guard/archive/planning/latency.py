"""How long a corruption goes unseen: the density f of the detection latency.

f is constant within each of some thousand cells that are equally long in the logarithm of time, so
that integrals over it are sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CELLS: Final = 4096
_BEYOND: Final = math.log(2)  # how far the outer gaps of measured latencies reach
_BLUR: Final = math.log(
    1.05
)  # either way, of gaps that are narrower: equal latencies have none between them


@dataclass(frozen=True)
class Latency:
    """A density over times.

    Attributes:
        edges: float64 (n + 1,), seconds, increasing: where the cells begin and end.
        mass: float64 (n,): probability of each cell; the sum is 1.
        words: what it is, for people.
    """

    edges: Array
    mass: Array
    words: str

    @property
    def widths(self) -> Array:
        """Lengths of the cells, float64 (n,), seconds."""
        return np.diff(self.edges)

    @property
    def mean(self) -> float:
        """Mean latency in seconds."""
        return float(np.sum(self.mass * (self.edges[1:] + self.edges[:-1])) / 2)

    @property
    def longest(self) -> float:
        """The longest latency that there is, in seconds."""
        return float(self.edges[-1])

    @property
    def roots(self) -> Array:
        """∫√f over each cell, float64 (n,), √s."""
        return np.sqrt(self.mass * self.widths)

    def within(self, times: Array) -> tuple[Array, Array]:
        """F(t) = ∫f and ∫t·f, both from 0 to each of the times, the second in seconds."""
        place = np.clip(np.searchsorted(self.edges, times, "right") - 1, 0, self.mass.size - 1)
        start = self.edges[place]
        end = np.clip(times, start, self.edges[place + 1])
        inside = self.mass[place] * (end - start) / self.widths[place]
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        before = np.concatenate([[0.0], np.cumsum(self.mass)])[place]
        moment = np.concatenate([[0.0], np.cumsum(self.mass * middles)])[place]
        return before + inside, moment + inside * (start + end) / 2


def log_uniform(least: float, most: float, words: str = "log-uniform") -> Latency:
    """Every factor of time as likely as any other: f(t) = 1/(t·ln(b/a)) from a to b seconds."""
    edges = np.geomspace(least, most, _CELLS + 1)
    return Latency(edges, np.full(_CELLS, 1 / _CELLS), words)


def measured(times: Sequence[float], words: str = "measured") -> Latency:
    """What n measured latencies tell of the next one.

    It is as likely in any of the n + 1 gaps between them, and outside of them, as in any other:
    that holds whatever the density is (order statistics: David and Nagaraja, "Order Statistics",
    2003, section 2.1). Within a gap every factor of time is taken to be as likely as any other; the
    outer gaps are taken to end at half of the shortest and at twice the longest latency.

    Args:
        times: seconds, all above 0, in any order.
    """
    logs = np.sort(np.log(np.asarray(times, np.float64)))
    knots = np.concatenate([[logs[0] - _BEYOND], logs, [logs[-1] + _BEYOND]])
    grid = np.linspace(knots[0] - _BLUR, knots[-1] + _BLUR, _CELLS + 1)
    share = np.zeros(_CELLS + 1)
    for begin, finish in pairwise(knots.tolist()):
        wider = max(_BLUR - (finish - begin) / 2, 0.0)
        start, end = begin - wider, finish + wider
        share += np.clip((grid - start) / (end - start), 0.0, 1.0)
    return Latency(np.exp(grid), np.diff(share) / (knots.size - 1), words)
