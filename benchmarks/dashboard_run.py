"""A large run for the dashboard's benchmarks: every table that a page reads, with one fault in it.

DuckDB makes the rows of layers and digests, they are encoded as segments of 1,000 steps and folded
into seals. One layer's norm is a thousand times too large at one step, an exact comparison told it
there, an incident was opened, and the checkpoints after it were held back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from dashboard_heatmap import write
from trace_rows import step_columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path
from sdc_guard.store.writer import Health, Writer

_SEGMENT: Final = 1_000  # steps
_EVERY: Final = 500  # steps from checkpoint to checkpoint
# What a step leaves is what the next one finds.
_DIGESTS: Final = """
    SELECT 1::INTEGER AS attempt, s::BIGINT AS step, phase, 'param' AS kind, l::INTEGER AS layer,
        (hash(l, s + (phase = 'after')::INTEGER) >> 1)::BIGINT AS h,
        (hash(s + (phase = 'after')::INTEGER, l) >> 1)::BIGINT AS s1,
        (hash(l, s + (phase = 'after')::INTEGER, 2) >> 1)::BIGINT AS s2
    FROM range({first}, {end}) AS a(s), (VALUES ('before'), ('after')) AS p(phase),
        range({tensors}) AS b(l)
"""


def make(run: Path, layers: int, steps: int, tensors: int) -> tuple[int, int]:
    """The run's files; returns step and number of the layer that is off.

    Args:
        run: a folder that is not there yet.
        layers: of the model.
        steps: 0 to `steps` - 1; layers × steps rows of norms.
        tensors: that are digested before and after each step, at most `layers`.
    """
    spike = (steps * 2 // 3, min(layers // 3, tensors - 1))
    write(run, layers, steps, spike, seal=False)
    write_digests(run, steps, tensors)
    _rest(run, steps, spike)
    seal_run(run, at_least=1)
    for path in (run / "trace").glob("*/rank=*/seg-*.parquet"):
        path.unlink()  # what a reader that began before may still want: there is none
    return spike


def publish_step(run: Path, step: int, layers: int) -> None:
    """What a guard publishes of one more step, in a segment of each table."""
    with_rows = Writer(run, 0, Health())
    with_rows.append("steps", **step_columns([step]))
    numbers = np.arange(layers, dtype=np.int32)
    with_rows.append("layers", **_measured(step, numbers))
    with_rows.close()


def _measured(step: int, layers: Any) -> dict[str, Any]:
    return {
        "attempt": 1,
        "step": np.full(len(layers), step, dtype=np.int64),
        "layer": layers,
        "norm": 1.0 + layers % 7,
        "nonfinite": 0,
        "zeros": 0,
        "scope": "local",
        "copies": 1,
    }


def write_digests(run: Path, steps: int, tensors: int) -> None:
    """Digests of the first `tensors` parameters before and after each step, in segments."""
    folder = rank_folder(run, "digests", 0)
    folder.mkdir(parents=True)
    connection = duckdb.connect()
    for number, first in enumerate(range(0, steps, _SEGMENT)):
        end = min(first + _SEGMENT, steps)
        query = _DIGESTS.format(first=first, end=end, tensors=tensors)
        segment_path(folder, number).write_bytes(encode(connection.sql(query).to_arrow_table()))
    connection.close()


def _rest(run: Path, steps: int, spike: tuple[int, int]) -> None:
    health = Health()
    writer = Writer(run, 0, health)
    writer.append("steps", **step_columns(range(steps)))
    for step in range(0, steps, 100):
        writer.append("shadow", attempt=1, step=step, loss=2.0, repeat_loss=2.0, seconds=0.1)
    for step in range(0, steps, _EVERY):
        status = "clean" if step < spike[0] else "suspect"
        writer.append(
            "checkpoints",
            attempt=1,
            step=step,
            path=f"archive/step={step:06d}",
            format="torch",
            bytes=10**9,
            status=status,
        )
    step, layer = spike
    for number in range(20):
        proven = number == 0
        writer.append(
            "alerts",
            attempt=1,
            step=step + number,
            layer=layer,
            detector="carried_digest" if proven else "gradient_norm",
            score=1.0 if proven else 44.0,
            threshold=1.0 if proven else 32.0,
            severity="proven" if proven else "suspect",
            detail=json.dumps({"kind": "param"} if proven else {}),
        )
    evidence = {"proven": True, "detectors": ["carried_digest"], "first": f"step {step}: changed"}
    writer.append(
        "incidents",
        attempt=1,
        step=step,
        incident=1,
        opened=step,
        verdict="undetermined",
        evidence=json.dumps(evidence),
    )
    writer.close()
    if health.dropped or health.errors:
        raise RuntimeError(health.last_error)
