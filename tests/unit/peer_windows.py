"""Measures of ranks made by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sdc_guard.detect.step_signals import StepSignals

NUMEL = 1000


def logs(seed: int, steps: int, ranks: int, layers: int) -> NDArray[np.float64]:
    """Healthy log norms (steps, ranks, layers): what steps share, what layers are, and noise.

    The noise is heavy-tailed, and correlated between the layers of a rank, as a batch makes it.
    """
    print("seed", seed)
    r = np.random.default_rng(seed)
    common = np.cumsum(0.05 * r.normal(size=(steps, 1, 1)), axis=0)
    size = 3 * r.normal(size=(1, 1, layers)) + 0.5 * r.normal(size=(1, ranks, layers))
    batch = 0.15 * r.standard_t(5, size=(steps, ranks, 1))
    noise: NDArray[np.float64] = 0.1 * r.standard_t(5, size=(steps, ranks, layers))
    return common + size + batch + noise


def values_of(norms: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """With quiet measures beside the norms: (steps, 3, ranks, layers)."""
    r = np.random.default_rng([seed, 1])
    quiet = 0.1 * r.normal(size=(2, *norms.shape))
    return np.stack([norms, quiet[0] - 3, quiet[1] - 5], axis=1)


def signals_of(norms: NDArray[np.float64], seed: int = 0) -> StepSignals:
    """What a recorder gives of one rank: from log norms (steps, layers)."""
    r = np.random.default_rng([seed, 2])
    size = np.exp(norms)
    return StepSignals(
        norms=size,
        max_abs=size * np.exp(0.1 * r.normal(size=norms.shape) - 3),
        zeros=r.integers(5, 15, size=norms.shape),
        nonfinite=np.zeros(norms.shape, dtype=np.int64),
    )
