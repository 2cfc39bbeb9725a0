"""How the sums that are measured of a gradient become the numbers that are recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SUMS = ("squares", "largest", "sizes", "nonfinite", "zeros")
MEASURES = ("norm", "max_abs", "mean_abs", "nonfinite", "zeros")


def measures(
    sums: NDArray[np.float64], numel: NDArray[np.int64], scale: float = 1.0
) -> NDArray[np.float64]:
    """MEASURES of gradients by their SUMS.

    Args:
        sums: float64, shape (layers, 5).
        numel: elements of each whole tensor, shape (layers,); for a shard not its own number, so
            that the shards' means add up.
        scale: the loss scale by which the gradients are too large.

    Returns:
        float64, shape (layers, 5): √Σg², max|g|, Σ|g|/numel, non-finite and zero elements.
    """
    out = sums.copy()
    # of a NaN and a number, neither is the largest: Σ|g| tells what there was
    out[:, 1] = np.where(np.isfinite(out[:, 2]), out[:, 1], out[:, 2])
    with np.errstate(invalid="ignore"):
        out[:, 0] = np.sqrt(out[:, 0])
    out[:, 2] /= np.maximum(numel, 1)
    out[:, :3] /= scale
    return out
