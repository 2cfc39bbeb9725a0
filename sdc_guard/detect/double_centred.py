"""How far each layer is from its own past, with what all layers and all ranks share taken out.

x is the logarithm of a measure of (rank, layer) at a step.

    r = x − median over ranks − c,   c = median over layers of (r − the layer's own level)
    z = (r − m) / (1.4826 · MAD + s₀)

m and MAD are the median and the median absolute deviation of the layer's last `WINDOW` admitted r;
the level is m. So a change that all ranks share (a schedule of the learning rate) and one that all
layers of a rank share (a spike of the whole model, a bad batch) leave z as it is. Layers differ in
size by orders of magnitude: without their own levels the median over them would be the value, and
the noise, of the one layer in the middle. With few layers their median is no better than each of
them, and is not taken out. It is the two-way median polish of Tukey (1977), as steps come.

Median and MAD are renewed every `RENEWAL` steps, more often at first: in between they hold still.
The window holds the last steps, with a gap where a value was missing or not admitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOW: Final = 128
WARM_UP: Final = 32  # values in the window before a stream is judged
RENEWAL: Final = 16  # a power of two: before that many steps it is renewed after 1, 2, 4, 8
FEWEST_LAYERS: Final = 4  # for their median to be taken out
_MAD_TO_SIGMA: Final = 1.4826  # the MAD of a normal distribution is σ/1.4826


@dataclass(frozen=True)
class Scored:
    """Some steps seen against the past.

    Attributes:
        residual: r, float64 (steps, ranks, layers); NaN where x is.
        z: likewise; NaN also where there is too little past.
    """

    residual: Floats
    z: Floats


@dataclass(frozen=True)
class _Past:
    """What `DoubleCentred.go_back` needs; arrays in it are never written to."""

    steps: int
    level: Floats
    spread: Floats
    seen: NDArray[np.int64]
    rejected: NDArray[np.int64]
    overwritten: NDArray[np.float32]


class DoubleCentred:
    """The recent past of all streams (rank, layer) of one measure.

    Args:
        layers: how many.
        ranks: how many; 1 for a process alone, whose ranks' median is then not taken out.
        floor: s₀, in the unit of x: a stream that never moved is no reason to divide by zero.
        warm_up: values in the window before a stream is judged.
    """

    def __init__(
        self, layers: int, *, ranks: int = 1, floor: float, warm_up: int = WARM_UP
    ) -> None:
        self._shape, self._floor, self._warm_up = (ranks, layers), floor, warm_up
        # a row a stream, so that each lies in one piece; float32 sorts several times faster
        self._window = np.full((ranks * layers, WINDOW), np.nan, dtype=np.float32)
        self._steps = 0
        self._level = np.full(self._shape, np.nan)
        self._spread = np.full(self._shape, np.nan)
        self._seen = np.zeros(self._shape, dtype=np.int64)
        self._rejected = np.zeros(self._shape, dtype=np.int64)

    @property
    def until_renewal(self) -> int:
        """Steps that may be scored together before medians are renewed; at least 1."""
        if self._steps < RENEWAL:
            return max(1, self._steps)
        return RENEWAL - self._steps % RENEWAL

    @property
    def judgeable(self) -> Bools:
        """Streams with enough past, shape (ranks, layers)."""
        judged: Bools = self._seen >= self._warm_up
        return judged

    def score(self, x: Floats) -> Scored:
        """Score some steps; nothing is changed.

        Args:
            x: logarithms, shape (steps, ranks, layers), no more steps than `until_renewal`. NaN
                for what is missing, or is not to be judged.
        """
        residual = self._centred(x)
        with np.errstate(invalid="ignore"):
            z = (residual - self._level) / (self._spread + self._floor)
        if not self.judgeable.all():
            z = np.where(self.judgeable, z, np.nan)
        return Scored(residual, z)

    def _centred(self, x: Floats) -> Floats:
        if self._shape[0] > 1:
            x = x - _median(x, axis=1)
        if self._shape[1] < FEWEST_LAYERS:
            return x
        known = np.isfinite(self._level).any()
        shared = _median(x - self._level if known else x, axis=2)
        return x - np.where(np.isfinite(shared), shared, 0.0)

    def admit(self, residual: Floats, healthy: Bools | None = None) -> Bools | None:
        """Take in steps that were scored, and renew medians if it is time to.

        Args:
            residual: of `score`, all of its steps or the first few.
            healthy: streams that raised no alarm, shape (steps, ranks, layers); None for all.

        Returns:
            The streams, shape (ranks, layers), that were out of their limits for so long that
            they begin anew: a shift that stands is the new level. None for none.
        """
        values = residual if healthy is None else np.where(healthy, residual, np.nan)
        steps, flat = len(values), values.reshape(len(values), -1).T
        self._window[:, (self._steps + np.arange(steps)) % WINDOW] = flat
        self._steps += steps
        anew = self._count_rejected(healthy, steps)
        if anew is not None:
            self._window[anew.ravel()] = np.nan
            self._renew()
        elif self._steps % RENEWAL == 0 or self._steps in (1, 2, 4, 8):
            self._renew()
        return anew

    def _count_rejected(self, healthy: Bools | None, steps: int) -> Bools | None:
        """Net number of rejected steps of each stream, back to 0 as it is admitted again."""
        if healthy is None and not self._rejected.any():
            return None
        out = 0 if healthy is None else (~healthy).sum(axis=0)
        self._rejected = np.maximum(0, self._rejected + 2 * out - steps)
        anew: Bools = self._rejected >= WINDOW
        if not anew.any():
            return None
        self._rejected = np.where(anew, 0, self._rejected)
        return anew

    def _renew(self) -> None:
        ordered = np.sort(self._window, axis=1)  # NaN sorts last
        count = np.isfinite(ordered).sum(axis=1)
        middle = _middle(ordered, count)
        apart = np.abs(ordered - middle[:, None].astype(np.float32))
        apart.sort(axis=1)
        self._level = middle.reshape(self._shape)
        self._spread = (_MAD_TO_SIGMA * _middle(apart, count)).reshape(self._shape)
        self._seen = count.reshape(self._shape)

    def remember(self, steps: int) -> _Past:
        """What `go_back` needs to undo as many steps, no more than `WINDOW`."""
        columns = (self._steps + np.arange(steps)) % WINDOW
        overwritten = self._window[:, columns]
        return _Past(
            self._steps, self._level, self._spread, self._seen, self._rejected, overwritten
        )

    def go_back(self, past: _Past) -> None:
        """Undo what was admitted since."""
        columns = (past.steps + np.arange(past.overwritten.shape[1])) % WINDOW
        self._window[:, columns] = past.overwritten
        self._steps, self._level, self._spread = past.steps, past.level, past.spread
        self._seen, self._rejected = past.seen, past.rejected


def _middle(ordered: NDArray[np.float32], count: NDArray[np.int64]) -> Floats:
    """Median of the first `count` of each row; NaN where that is 0."""
    rows = np.arange(len(ordered))
    low, high = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, count // 2 % WINDOW]
    middle: Floats = (low.astype(np.float64) + high) / 2
    return middle


def _median(values: Floats, axis: int) -> Floats:
    """Median of what is finite along an axis, which is kept; NaN where nothing is."""
    if np.isfinite(values).all():
        median: Floats = np.median(values, axis=axis, keepdims=True)
        return median
    ordered = np.sort(values, axis=axis)
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    found: Floats = np.where(count > 0, (low + high) / 2, np.nan)
    return found
