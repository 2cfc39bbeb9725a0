"""Three questions that a dashboard asks of a trace, and what their answers must be."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from trace_rows import norms_planted, planted

WINDOW: Final = 500  # steps
TOP: Final = 20

# z is how far the logarithm of a norm is from its layer's mean, in standard deviations
QUERIES: Final = {
    "one layer": "SELECT step, norm FROM layers WHERE layer = $layer ORDER BY step",
    "last 500 steps": (
        "SELECT step, layer, norm FROM layers"
        f" WHERE step > (SELECT max(step) FROM steps) - {WINDOW} AND step <="
        " (SELECT max(step) FROM steps)"
    ),
    "top anomalies": f"""
        WITH usual AS (
            SELECT layer, avg(ln(norm)) AS mean, stddev_samp(ln(norm)) AS deviation
            FROM layers WHERE norm > 0 AND isfinite(norm) GROUP BY layer
        )
        SELECT step, layer, (ln(norm) - mean) / deviation AS z
        FROM layers JOIN usual USING (layer)
        WHERE norm > 0 AND isfinite(norm) AND deviation > 0
        ORDER BY z DESC LIMIT {TOP}""",
}


def parameters(name: str, layer: int) -> dict[str, Any]:
    """What a query has to be given."""
    return {"layer": layer} if name == "one layer" else {}


def wrong(name: str, found: pa.Table, layers: int, layer: int, acknowledged: int) -> str | None:
    """What is wrong with an answer, or None.

    Args:
        name: of the query.
        found: its answer.
        layers: of the run.
        layer: that was asked for.
        acknowledged: the number of steps that were published before the reader looked; it may
            see more.
    """
    if name == "top anomalies":
        named = set(zip(found["step"].to_pylist(), found["layer"].to_pylist(), strict=True))
        missing = set(planted(layers, acknowledged)) - named
        return f"{len(missing)} planted anomalies not named" if missing else None
    step = found["step"].to_numpy()
    asked = np.arange(layers) if name == "last 500 steps" else np.array([layer])
    last = int(step.max(initial=-1))
    if last + 1 < acknowledged:
        return f"ends at step {last} of {acknowledged} acknowledged"
    first = max(0, last + 1 - WINDOW) if name == "last 500 steps" else 0
    layer_of_row = found["layer"].to_numpy() if len(asked) > 1 else np.full(len(step), layer)
    order = np.lexsort((layer_of_row, step))
    steps, numbers = (
        np.repeat(np.arange(first, last + 1), len(asked)),
        np.tile(asked, last + 1 - first),
    )
    if not np.array_equal(step[order], steps) or not np.array_equal(layer_of_row[order], numbers):
        return f"{len(step)} rows instead of {len(steps)}, or other steps and layers"
    norm = found["norm"].to_numpy()[order]
    return None if np.array_equal(norm, norms_planted(steps, numbers, layers)) else "other values"
