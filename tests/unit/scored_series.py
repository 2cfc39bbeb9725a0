"""Series made by hand, for what scores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sdc_guard.campaign.series import SignalSeries


def series_of(
    norms: Any,
    loss: Sequence[float] | None = None,
    *,
    max_abs: Any = None,
    nonfinite: Any = None,
    first_step: int = 1,
    numel: int = 100,
) -> SignalSeries:
    """A series with these norms, shape (steps,) for one layer or (steps, layers)."""
    table = np.asarray(norms, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    largest = table / 3 if max_abs is None else np.asarray(max_abs, float).reshape(table.shape)
    bad = np.zeros(table.shape) if nonfinite is None else np.asarray(nonfinite)
    return SignalSeries(
        first_step,
        table,
        largest,
        np.zeros(table.shape, dtype=np.int64),
        bad.reshape(table.shape).astype(np.int64),
        np.full(len(table), 2.0) if loss is None else np.asarray(loss, dtype=np.float64),
        ((numel,),) * table.shape[1],
    )
