"""How long corruption goes unnoticed, and how far one has to go back because of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HORIZON: Final = 100.0  # days; a latency beyond is not expected


@dataclass(frozen=True)
class LogUniform:
    """The latency of a detection, from a step that went wrong to its being noticed, in days.

    Every factor is as likely as any other: from an hour to a day as from four days to a hundred.
    That is the usual choice of somebody who knows the order of magnitude least of all
    (Jeffreys' prior of a scale), cut at both ends. f(L) = 1 / (L·ln(high/low)).

    Attributes:
        low, high: the ends, 0 < low < high.
    """

    low: float
    high: float = HORIZON

    @classmethod
    def between(cls, interval: float, high: float = HORIZON) -> LogUniform:
        """From the interval between two saves, below which latency costs nothing, to `high`."""
        return cls(min(interval, high / 2), high)

    def below(self, days: Floats) -> Floats:
        """F: the probability that a latency is at most so many days."""
        inside = np.clip(days, self.low, self.high)
        share: Floats = np.log(inside / self.low) / np.log(self.high / self.low)
        return share

    def mean_between(self, first: Floats, last: Floats) -> Floats:
        """∫ L·f(L) dL over each [first, last], in days."""
        width = np.clip(last, self.low, self.high) - np.clip(first, self.low, self.high)
        mean: Floats = width / np.log(self.high / self.low)
        return mean


def excess(ages: Floats, latency: LogUniform) -> tuple[float, float]:
    """How far one goes back beyond what went wrong, on average, and how often one cannot.

    What went wrong L days ago is undone by the newest checkpoint that is older, of age a: the
    excess is a − L. So with ages a₁ < a₂ < …, and a₀ = 0, it is Σ ∫ (aᵢ − L)·f(L) dL, each from
    aᵢ₋₁ to aᵢ.

    Args:
        ages: in days, ascending.
        latency: its density f.

    Returns:
        the mean in days over latencies that the oldest one covers, 0 if none; and the probability
        of a latency that it does not cover.
    """
    if not len(ages):
        return 0.0, 1.0
    before = np.append(0.0, ages[:-1])
    mass = latency.below(ages) - latency.below(before)
    total = float(np.sum(ages * mass - latency.mean_between(before, ages)))
    covered = float(np.sum(mass))
    return (total / covered if covered else 0.0), 1.0 - covered


def least_excess(count: int, latency: LogUniform) -> float:
    """The excess that `count` checkpoints cannot go below wherever they lie, in days.

    With n(a) checkpoints per day of age, the excess of a latency near a is half a gap, 1/2n(a).
    ∫ f/2n under ∫ n = K is least where n ∝ √f (Lagrange; Panter and Dite have it for quantizers,
    whose squared gaps give the cube root), and comes to (∫√f)²/2K. Of a log-uniform density
    ∫√f = 2(√high − √low) / √ln(high/low). No policy that can only keep what is still there
    reaches it: what lies right now has to lie right later, too.
    """
    root = 2 * (np.sqrt(latency.high) - np.sqrt(latency.low))
    return float(root**2 / np.log(latency.high / latency.low) / (2 * count))
