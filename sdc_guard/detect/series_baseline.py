"""The recent past of one scalar series, and how far a value is from it.

A gradient norm is judged by its log against the window's median. A loss is judged by its distance
from the local trend, the median of the last few losses, against the window of such distances.

    z = (r − median) / (max(1.4826·MAD, q90/1.645) + floor)

where q90 is the 90th percentile of the absolute deviations from the median. For a normal
distribution both terms of the maximum are σ. The second holds where more than half of the values
are alike and the MAD says 0, and it is wider for tails heavier than the normal one's. Where more
than half of the values are exactly 0 there is no scale at all, and nothing is judged: a loss that
is 0 for most batches, as in reinforcement learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .peaks import Tail
from .series_tails import LOSS_ABOVE, LOSS_BELOW, LOSS_SHAPES, NORM_ABOVE, NORM_BELOW, NORM_SHAPES

Floats = NDArray[np.float64]

WINDOW: Final = 128
WARM_UP: Final = 32
_MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution, as is the next
_Q90_TO_SIGMA: Final = 1 / 1.6448536269514722


@dataclass(frozen=True)
class Scale:
    """How a series is judged.

    Attributes:
        logarithm: whether its values are positive and judged by their log.
        trend: rows whose median is the local trend; 0 for none.
        floor: added to the scale, in the unit of what is judged.
        relative_floor: likewise, times the trend's absolute value.
        above: tail of z of healthy logs, as far as it is positive.
        below: that of −z.
        shapes: what the shape of a log's own tail is drawn to, above and below.
    """

    logarithm: bool
    trend: int
    floor: float
    relative_floor: float
    above: Tail
    below: Tail
    shapes: tuple[float, float]


# The floors are what a person would not call odd in a series without noise: 5 % of a norm, 0.5 %
# of a loss. A log's own rounding stays below them.
NORM_SCALE: Final = Scale(
    logarithm=True,
    trend=0,
    floor=0.05,
    relative_floor=0.0,
    above=NORM_ABOVE,
    below=NORM_BELOW,
    shapes=NORM_SHAPES,
)
LOSS_SCALE: Final = Scale(
    logarithm=False,
    trend=16,
    floor=0.0,
    relative_floor=0.005,
    above=LOSS_ABOVE,
    below=LOSS_BELOW,
    shapes=LOSS_SHAPES,
)


class SeriesBaseline:
    """The last `WINDOW` admitted values of one series.

    Args:
        scale: how the series is judged.
    """

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._values: Floats = np.empty(0)  # as judged: logs of norms
        self._rests: Floats = np.empty(0)  # their distances from the trend

    @property
    def full(self) -> bool:
        """Whether `scores` may be asked for several values at once."""
        return len(self._rests) == WINDOW

    def judged(self, raw: Floats) -> Floats:
        """Values as they are compared: logs of norms, losses as they are."""
        return np.log(raw) if self.scale.logarithm else raw

    def level(self) -> tuple[float, float]:
        """Median and scale of the admitted values; NaN without enough of them."""
        if len(self._values) < WARM_UP:
            return float("nan"), float("nan")
        floor = self._floor(np.median(self._values, keepdims=True))
        middle, sigma = _centre(self._values[None, :], floor)
        return float(middle[0]), float(sigma[0])

    def score(self, value: float) -> tuple[float, float]:
        """z of one value as it is compared, and the value that would have been in the middle.

        NaN without enough past, or without any scale.
        """
        if len(self._rests) < WARM_UP:
            return float("nan"), float("nan")
        trend = np.array([self._trend()])
        middle, sigma = _centre(self._rests[None, :], self._floor(trend))
        z = _z(value - trend, middle, sigma)
        return float(z[0]), float(trend[0] + middle[0])

    def scores(self, values: Floats) -> tuple[Floats, Floats]:
        """`score` of each of several values, as if all before it had been admitted.

        The window has to be full. Shape (values,) both.
        """
        trends = self._trends(values)
        rests = np.concatenate([self._rests, values - trends])
        middle, sigma = _centre(sliding_window_view(rests[:-1], WINDOW), self._floor(trends))
        return _z(rests[WINDOW:], middle, sigma), trends + middle

    def admit(self, values: Floats) -> None:
        """Take in values that raised no alarm, in their order."""
        if self.full:
            rests = values - self._trends(values)
        else:
            known = []
            for value in values:
                if len(self._values) >= self.scale.trend:
                    known.append(value - self._trend())
                self._values = np.append(self._values, value)
            rests = np.array(known)
            values = np.empty(0)
        self._values = np.concatenate([self._values, values])[-WINDOW:]
        self._rests = np.concatenate([self._rests, rests])[-WINDOW:]

    def _trend(self) -> float:
        rows = self.scale.trend
        return float(np.median(self._values[-rows:])) if rows else 0.0

    def _trends(self, values: Floats) -> Floats:
        rows = self.scale.trend
        if not rows:
            return np.zeros(len(values))
        course = np.concatenate([self._values[-rows:], values[:-1]])
        trends: Floats = np.median(sliding_window_view(course, rows), axis=1)
        return trends

    def _floor(self, trends: Floats) -> Floats:
        return self.scale.floor + self.scale.relative_floor * np.abs(trends)


def _centre(windows: NDArray[np.float64], floor: Floats) -> tuple[Floats, Floats]:
    """Median and scale along each row, shape (rows,) each; a scale of 0 is none."""
    count = windows.shape[1]
    low, high = (count - 1) // 2, count // 2
    ordered = np.partition(windows, sorted({low, high}), axis=1)
    middle = (ordered[:, low] + ordered[:, high]) / 2
    far = int(0.9 * count)
    apart = np.partition(np.abs(windows - middle[:, None]), sorted({low, high, far}), axis=1)
    mad = (apart[:, low] + apart[:, high]) / 2
    sigma = np.maximum(_MAD_TO_SIGMA * mad, _Q90_TO_SIGMA * apart[:, far]) + floor
    return middle, np.where(mad + floor > 0, sigma, 0.0)


def _z(rests: Floats, middle: Floats, sigma: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z: Floats = np.where(sigma > 0, (rests - middle) / sigma, np.nan)
    return z
