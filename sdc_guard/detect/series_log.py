"""A training log as arrays: one row a logged step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """One number a row, where there is one.

    Attributes:
        values: shape (rows,); NaN and the infinities as they were logged.
        given: shape (rows,); False where nothing was logged, whatever `values` holds there.
    """

    values: Floats
    given: Bools

    @classmethod
    def of(cls, values: Floats) -> Column:
        """A column in which every row is given."""
        numbers = np.asarray(values, dtype=np.float64)
        return cls(numbers, np.ones(len(numbers), dtype=np.bool_))

    @property
    def finite(self) -> Bools:
        """Rows with a finite number."""
        return self.given & np.isfinite(self.values)

    @property
    def odd(self) -> Bools:
        """Rows in which NaN or an infinity was logged."""
        return self.given & ~np.isfinite(self.values)

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Column:
        """These rows alone, in that order."""
        return Column(self.values[rows], self.given[rows])


@dataclass(frozen=True)
class SeriesLog:
    """The rows of one run, in the order in which they were written.

    Attributes:
        steps: shape (rows,), int64. A step may come again after a restart.
        loss: the training loss, or None if it was not logged.
        grad_norm: the norm of the whole gradient, or None.
        lr: the learning rate, or None.
        loss_scale: the scale of a mixed-precision scaler, or None.
    """

    steps: Steps
    loss: Column | None = None
    grad_norm: Column | None = None
    lr: Column | None = None
    loss_scale: Column | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SeriesLog:
        """These rows alone, in that order."""
        columns = (self.loss, self.grad_norm, self.lr, self.loss_scale)
        return SeriesLog(self.steps[rows], *(c and c.at(rows) for c in columns))
