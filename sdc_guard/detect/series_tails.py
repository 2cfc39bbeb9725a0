"""How far healthy losses and gradient norms are from their past: where limits begin.

Of the z on one side, 0 where it is on the other. Calibrated with benchmarks/calibrate_series.py on
logs made from formulas and by small trainings, seeds 0 to 4. The tails are those of all of them
together: a log of few rows may be any of them. In a log of more rows its own tail takes their
place, whose shape, which few values tell badly, is drawn towards the mean of the families' shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .peaks import Tail

NORM_ABOVE: Final = Tail(level=1.225, share=0.05, scale=0.436, shape=0.309)
NORM_BELOW: Final = Tail(level=1.277, share=0.05, scale=0.415, shape=0.205)
LOSS_ABOVE: Final = Tail(level=1.522, share=0.05, scale=0.500, shape=0.256)
LOSS_BELOW: Final = Tail(level=1.289, share=0.05, scale=0.460, shape=0.066)

NORM_SHAPES: Final = (0.16, 0.06)  # above, below
LOSS_SHAPES: Final = (0.05, 0.08)

# Be it ever so rare in its log, what is nearer to its past than this is not worth telling: in a
# steady series one value in a million is further than 5 σ. What is further, and next to an alarm,
# belongs to it: its beginning, or its end.
LOWEST: Final = 5.0


def divided(budget: float, tails: Sequence[Tail]) -> list[float]:
    """Divide a budget of false alarms among tails, in equal parts as far as they need it.

    A tail that is above `LOWEST` more rarely than its part takes no more than that, and leaves the
    rest to heavier ones. Its own limit is not above `LOWEST` either way.

    Args:
        budget: false alarms a row, all tails together.
        tails: those of each side of each signal.
    """
    needs = [_above(tail, LOWEST) for tail in tails]
    parts = [0.0] * len(tails)
    left, open_ones = budget, sorted(range(len(tails)), key=needs.__getitem__)
    for done, one in enumerate(open_ones):
        equal = left / (len(tails) - done)
        parts[one] = equal
        left -= min(equal, needs[one])
    return parts


def _above(tail: Tail, value: float) -> float:
    """The probability of a value above this one, which is above the tail's level."""
    far = max(0.0, value - tail.level) / tail.scale
    if tail.shape < 1e-9:
        return tail.share * math.exp(-far)
    return float(tail.share * (1 + tail.shape * far) ** (-1 / tail.shape))
