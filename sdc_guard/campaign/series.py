"""What a run recorded of consecutive steps, as arrays that detectors are scored on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SignalSeries:
    """Measures of the gradients and the loss of consecutive steps of one run.

    Attributes:
        first_step: number of the first step.
        norms: L2 norm of each layer's gradient, shape (steps, layers); NaN without a gradient, and
            where an element of it is not finite.
        max_abs: largest absolute element, likewise.
        zeros: elements that are zero, shape (steps, layers).
        nonfinite: elements that are NaN or infinite, shape (steps, layers).
        loss: shape (steps,); NaN where there was none.
        shapes: of each layer.

    Raises:
        ValueError: the shapes do not belong together.
    """

    first_step: int
    norms: Floats
    max_abs: Floats
    zeros: Counts
    nonfinite: Counts
    loss: Floats
    shapes: Shapes

    def __post_init__(self) -> None:
        shape = (len(self.loss), self.layers)
        for name in ("norms", "max_abs", "zeros", "nonfinite"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, expected {shape}")

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.shapes)

    @property
    def steps(self) -> Counts:
        """Number of each step, shape (steps,)."""
        return self.first_step + np.arange(len(self), dtype=np.int64)

    def part(self, start: int, stop: int) -> SignalSeries:
        """The steps with numbers in [start, stop), as views."""
        here = slice(max(start - self.first_step, 0), max(stop - self.first_step, 0))
        return SignalSeries(
            max(start, self.first_step),
            self.norms[here],
            self.max_abs[here],
            self.zeros[here],
            self.nonfinite[here],
            self.loss[here],
            self.shapes,
        )

    @cached_property
    def numel(self) -> Counts:
        """Elements of each layer, shape (layers,)."""
        return np.array([prod(shape) for shape in self.shapes], dtype=np.int64)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Layers without a gradient, shape (steps, layers)."""
        missing: NDArray[np.bool_] = np.isnan(self.norms) & (self.nonfinite == 0)
        return missing

    @cached_property
    def global_norms(self) -> Floats:
        """Norm of all gradients of a step together, shape (steps,).

        A layer without a gradient adds nothing; one with a value that is not finite makes it NaN,
        as it does in training.
        """
        norms: Floats = np.sqrt(np.square(np.where(self.missing, 0.0, self.norms)).sum(axis=1))
        return norms
