"""Two-sided CUSUM: shifts that are small at each step, and last.

Page, Continuous Inspection Schemes (1954): S⁺ ← max(0, S⁺ + z − k) and S⁻ ← max(0, S⁻ − z − k).
With k = 1/2 it is the fastest to see a shift of one σ, and gains half of a σ at each step of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ALLOWANCE: Final = 0.5  # k, in σ
LARGEST: Final = 4.0  # |z| counts for no more: a single spike is not a lasting shift


class Cusum:
    """The sums of many streams.

    Args:
        shape: of one step's streams.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.up = np.zeros(shape)
        self.down = np.zeros(shape)

    def after(self, z: Floats) -> tuple[Floats, Floats]:
        """The sums as they would be after each of these steps; nothing is changed.

        Args:
            z: shape (steps, *shape); NaN leaves a stream's sums as they are.

        Returns:
            S⁺ and S⁻, each like `z`.
        """
        known = np.isfinite(z)
        near = np.where(known, np.clip(z, -LARGEST, LARGEST), 0.0)
        allowance = np.where(known, ALLOWANCE, 0.0)
        ups, downs = np.empty(z.shape), np.empty(z.shape)
        up, down = self.up, self.down
        for step in range(len(z)):
            up = np.maximum(0.0, up + (near[step] - allowance[step]), out=ups[step])
            down = np.maximum(0.0, down - (near[step] + allowance[step]), out=downs[step])
        return ups, downs

    def move_to(self, up: Floats, down: Floats) -> None:
        """Take the sums of a step over; both have the shape of one step."""
        self.up, self.down = up.copy(), down.copy()

    def restart(self, which: Bools) -> None:
        """Begin these streams at zero again."""
        self.up, self.down = np.where(which, 0.0, self.up), np.where(which, 0.0, self.down)


def larger(ups: Floats, downs: Floats) -> Floats:
    """The larger sum of each stream, negative for a shift downwards."""
    return np.where(ups >= downs, ups, -downs)
