"""What the sensor looks at of a step, and the statistics that it makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ZEROS_BEFORE: Final = 4.0
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


LAYER_STATISTICS: Final = ("norm", "peak", "zeros")


def layer_statistics(signals: StepSignals, numel: Ints) -> Floats:
    """What is judged of each layer, float64 (steps, 3, layers); NaN for what is not.

    In the order of `LAYER_STATISTICS`:

    * log of the norm. A true zero gradient and a missing one are not small norms.
    * log of max|g| over the norm: 0 if one element is all there is.
    * log-odds of an element to be exactly zero, (zeros + 4) / (others + ½): a few zeros among many
      elements come and go.

    Args:
        signals: with an axis of steps.
        numel: int64 (layers,), elements of each layer's gradient.
    """
    norms = signals.norms
    steps, layers = norms.shape
    found = np.empty((steps, len(LAYER_STATISTICS), layers))
    if signals.nonfinite.any():
        norms = np.where(signals.nonfinite > 0, np.nan, norms)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log(norms, out=found[:, 0])
        np.log(signals.max_abs, out=found[:, 1])
        found[:, 1] -= found[:, 0]
    odds = (signals.zeros + _ZEROS_BEFORE) / (np.maximum(numel - signals.zeros, 0) + 0.5)
    np.log(odds, out=found[:, 2])
    if not (norms > 0).all():
        _leave_out(found, norms)
    return found


def _leave_out(found: Floats, norms: Floats) -> None:
    """Put NaN where a layer has no gradient, one that is not finite, or nothing but zeros.

    In a step in which half of the layers are nothing but zeros, their zeros are those of the loss:
    rewards without any difference, a batch that is masked out.
    """
    usable = np.isfinite(norms) & (norms > 0)
    found[:, :2][~np.broadcast_to(usable[:, None], found[:, :2].shape)] = np.nan
    present, entirely = np.isfinite(norms), norms == 0
    all_at_once = entirely.sum(axis=1) >= _MOST_AT_ONCE * present.sum(axis=1)
    found[:, 2][~present | (entirely & all_at_once[:, None])] = np.nan


def log_total_norm(signals: StepSignals) -> Floats:
    """Log of the norm of all layers together, float64 (steps,); NaN where that is not finite or 0.

    Layers without a gradient are passed over.
    """
    squares = np.square(signals.norms)
    if np.isnan(squares).any():
        squares = np.where(np.isnan(signals.norms) & (signals.nonfinite == 0), 0.0, squares)
    total = squares.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(total) / 2
    return np.where(np.isfinite(logs), logs, np.nan)


def log_losses(losses: Sequence[float | None]) -> Floats:
    """Logs of the losses, float64 (steps,); NaN for what is not positive and finite."""
    values = np.array([math.nan if loss is None else loss for loss in losses], dtype=np.float64)
    usable = np.isfinite(values) & (values > 0)
    return np.log(values, where=usable, out=np.full(values.shape, np.nan))
