"""Three questions that a dashboard asks of a trace, and what their answers must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from trace_rows import norms_planted, planted

from sdc_guard import RunReader
from sdc_guard.store.queries import all_layers, layer_over_steps, top_anomalies

WINDOW: Final = 500  # steps
TOP: Final = 20
_COMPARED: Final = 20_000  # values of an answer

QUERIES: Final[dict[str, Callable[[RunReader, int], pa.Table]]] = {
    "one layer": lambda reader, layer: layer_over_steps(reader, layer),
    "last 500 steps": lambda reader, _: all_layers(reader, *_last_steps(reader)),
    "top anomalies": lambda reader, _: top_anomalies(reader, TOP),
}


def _last_steps(reader: RunReader) -> tuple[int, int]:
    ((last,),) = reader.rows("SELECT max(step) FROM steps")
    return last - WINDOW + 1, last


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
    norm = found["value" if name == "one layer" else "norm"].to_numpy()
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
