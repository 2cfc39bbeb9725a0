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
# Zeros come by rows: a token that a batch does not have, a unit that is off. A row of a matrix of n
# elements has about √n of them; where there was none before, one is little.
_ROWS_BEFORE: Final = 0.5
_MOST_AT_ONCE: Final = 0.5  # of the layers: when more are zero, the step has nothing to teach
_TOGETHER: Final = 2  # entirely zero layers: then something was not used, and no tensor was lost
_LOW_TAIL: Final = 4.0


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
    * log-odds of an element to be exactly zero, (zeros + 4 + √numel/2) / (others + ½): a few zeros
      among many elements come and go, and so does a row of a matrix.

    A single element has no peak beside its norm.

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
    found[:, 1, numel == 1] = np.nan
    odds = (signals.zeros + _zeros_before(numel)) / (np.maximum(numel - signals.zeros, 0) + 0.5)
    np.log(odds, out=found[:, 2])
    if not (norms > 0).all():
        _leave_out(found, norms)
    return found


def _leave_out(found: Floats, norms: Floats) -> None:
    """Put NaN where a layer has no gradient, one that is not finite, or nothing but zeros.

    In a step in which half of the layers are nothing but zeros, or the only one is, their zeros are
    those of the loss: rewards without any difference, a batch that is masked out.
    """
    usable = np.isfinite(norms) & (norms > 0)
    found[:, :2][~np.broadcast_to(usable[:, None], found[:, :2].shape)] = np.nan
    present, entirely = np.isfinite(norms), norms == 0
    count, most = entirely.sum(axis=1), present.sum(axis=1)
    all_at_once = (count >= np.maximum(_TOGETHER, _MOST_AT_ONCE * most)) | (count == most)
    found[:, 2][~present | (entirely & all_at_once[:, None])] = np.nan


def unused(signals: StepSignals) -> Bools | None:
    """Layers that are nothing but zeros together with others, (steps, layers); None for none.

    An expert without tokens or a branch left out is several tensors; the fault of a tensor is one.

    Args:
        signals: with an axis of steps.
    """
    entirely = signals.norms == 0
    if not entirely.any():
        return None
    found: Bools = entirely & (entirely.sum(axis=1, keepdims=True) >= _TOGETHER)
    return found


def _zeros_before(numel: Ints) -> Floats:
    before: Floats = _ZEROS_BEFORE + _ROWS_BEFORE * np.sqrt(numel)
    return before


def low_floors(numel: Ints) -> Floats:
    """What to allow a log norm to be lower for being of few elements, float64 (layers,).

    Gradients pass through zero. P(norm < ε · its usual size) goes as εⁿ, so that the log norm has
    an exponential lower tail of the scale 1/n: for n = 1 it is 14 below once in 10⁶ steps. 0 where
    that is less than a hundredth.

    Args:
        numel: int64 (layers,), elements of each layer's gradient.
    """
    floors = _LOW_TAIL / np.maximum(numel, 1)
    return np.where(floors > 0.01, floors, 0.0)


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


def log_losses(losses: Sequence[float | None], *, signed: bool = False) -> Floats:
    """Logs of the losses, float64 (steps,); NaN for what is not positive and finite.

    Args:
        losses: of each step, or None.
        signed: whether losses below zero occur, as log-likelihoods of densities: then asinh, which
            is a log away from zero, and NaN only for what is not finite.
    """
    values = np.array([math.nan if loss is None else loss for loss in losses], dtype=np.float64)
    if signed:
        return np.arcsinh(np.where(np.isfinite(values), values, np.nan))
    usable = np.isfinite(values) & (values > 0)
    return np.log(values, where=usable, out=np.full(values.shape, np.nan))
