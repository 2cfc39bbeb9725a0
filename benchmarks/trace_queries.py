"""Three questions that a dashboard asks of a trace, and what their answers must be."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from trace_rows import norms_planted, planted

WINDOW: Final = 500  # steps
TOP: Final = 20
_COMPARED: Final = 20_000  # values of an answer

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
    step, norm = found["step"].to_numpy(), found["norm"].to_numpy()
    last = int(step.max(initial=-1))
    if last + 1 < acknowledged:
        return f"ends at step {last} of {acknowledged} acknowledged"
    of_all = name == "last 500 steps"
    number = found["layer"].to_numpy() if of_all else np.full(len(step), layer)
    first = max(0, last + 1 - WINDOW) if of_all else 0
    places = (step - first) * layers + number if of_all else step
    expected = (last + 1 - first) * (layers if of_all else 1)
    # counted and not sorted: a check must not take the readers' cores for long
    if len(step) != expected or not np.array_equal(
        np.bincount(places - places.min(initial=0), minlength=expected), np.ones(expected)
    ):
        return f"{len(step)} rows instead of {expected}, or other steps and layers"
    some = slice(None, None, 1 + len(step) // _COMPARED)
    right = np.array_equal(norm[some], norms_planted(step[some], number[some], layers))
    return None if right else "other values"
