"""What the sensor looks at of a step, and the statistics that it makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MOST_AT_ONCE: Final = 0.5  # of the layers: when more are zero, the step has nothing to teach


@dataclass(frozen=True)
class StepSignals:
    """Measures of the gradients of one step, shape (layers,), or of several, (steps, layers).

    Attributes:
        norms: float64, NaN for a layer without a gradient.
        max_abs: float64, the largest |g|, NaN for a layer without a gradient.
        zeros: int64, elements that are exactly 0.
        nonfinite: int64, elements that are NaN or infinite.
    """

    norms: Floats
    max_abs: Floats
    zeros: Ints
    nonfinite: Ints

    @property
    def many(self) -> StepSignals:
        """The same with an axis of steps, of length 1 if these are of one step."""
        if self.norms.ndim == 2:
            return self
        return StepSignals(
            self.norms[None], self.max_abs[None], self.zeros[None], self.nonfinite[None]
        )

    def steps(self, first: int, last: int) -> StepSignals:
        """Those of the steps `first` up to, without, `last`."""
        part = slice(first, last)
        return StepSignals(
            self.norms[part], self.max_abs[part], self.zeros[part], self.nonfinite[part]
        )


@dataclass(frozen=True)
class Statistics:
    """What is judged, float64, shape (steps, layers); NaN for what is not.

    Attributes:
        norm: log of the norm. A true zero gradient and a missing one are not small norms.
        peak: log of max|g| over the norm: 0 if one element is all there is.
        zeros: log-odds of an element to be zero, (zeros + ½) / (others + ½).
        total: log of the norm of all layers together, shape (steps,).
    """

    norm: Floats
    peak: Floats
    zeros: Floats
    total: Floats


def statistics_of(signals: StepSignals, numel: Ints, been_zero: Bools | None = None) -> Statistics:
    """The statistics of some steps.

    Args:
        signals: with an axis of steps.
        numel: int64 (layers,), elements of each layer's gradient.
        been_zero: bool (layers,), layers known to be entirely zero at times, as an expert is that
            no token was sent to: then their share of zeros says nothing.
    """
    bad = signals.nonfinite > 0
    present = np.isfinite(signals.norms) & ~bad
    usable = present & (signals.norms > 0)
    logs = _log(signals.norms, usable)
    entirely = present & (signals.norms == 0)
    counted = present
    if entirely.any():
        all_at_once = entirely.sum(axis=1) >= _MOST_AT_ONCE * present.sum(axis=1)
        known = np.zeros(len(numel), dtype=bool) if been_zero is None else been_zero
        counted = present & ~(entirely & (all_at_once[:, None] | known))
    odds = (signals.zeros + 0.5) / (np.maximum(numel - signals.zeros, 0) + 0.5)
    squares = np.square(np.where(present, signals.norms, 0.0)).sum(axis=1)
    whole = (squares > 0) & ~bad.any(axis=1)
    return Statistics(
        norm=logs,
        peak=_log(signals.max_abs, usable & (signals.max_abs > 0)) - logs,
        zeros=_log(odds, counted),
        total=_log(squares, whole) / 2,
    )


def _log(values: Floats, where: Bools) -> Floats:
    return np.log(values, where=where, out=np.full(values.shape, np.nan))
