"""From traces to the rows of a campaign's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import pyarrow as pa

from .plan import Clean
from .tables import TABLES
from .trace import AlertRow, Trace

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def clean_rows(run: Clean, trace: Trace, states: Mapping[int, str]) -> Rows:
    """The rows of a clean run.

    Args:
        states: hash of the whole state after a step, where there is one.
    """
    whose = {"purpose": run.purpose, "model": run.model, "seed": run.seed}
    return {
        "clean_runs": [{**whose, "steps": run.steps}],
        "clean_steps": [
            {**whose, **_step(trace, step), "state": states.get(step)} for step in trace.steps
        ],
        "clean_signals": [{**whose, **row} for row in _signals(trace)],
        "clean_alerts": [{**whose, **_alert(alert)} for alert in trace.alerts],
    }


def trial_rows(number: int, row: Row, trace: Trace, differing: Mapping[int, int]) -> Rows:
    """The rows of a trial.

    Args:
        row: of the table "trials".
        differing: tensors that differ from the twin's after each step.
    """
    return {
        "trials": [row],
        "trial_steps": [
            {"trial": number, **_step(trace, step), "differing": differing[step]}
            for step in trace.steps
        ],
        "trial_signals": [{"trial": number, **row} for row in _signals(trace)],
        "trial_alerts": [{"trial": number, **_alert(alert)} for alert in trace.alerts],
    }


def layer_rows(model: str, trace: Trace) -> list[Row]:
    """Rows of the table "layers"."""
    return [
        {"model": model, "layer": layer, "name": name, "numel": prod(shape), "shape": list(shape)}
        for layer, (name, shape) in trace.names.items()
    ]


def as_arrow(table: str, rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table of the schema of `table`; what a row lacks is null.

    Raises:
        ValueError: a row has a column that the table has not.
    """
    schema = TABLES[table]
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise ValueError(f"{table} has no {', '.join(sorted(unknown))}")
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    return pa.table(columns, schema=schema)


def _step(trace: Trace, step: int) -> Row:
    row = trace.steps[step]
    return {
        "step": step,
        "loss": row.loss,
        "grad_norm": row.grad_norm,
        "batch_hash": row.batch_hash,
    }


def _signals(trace: Trace) -> Iterator[Row]:
    for step, layers in trace.layers.items():
        for layer, (norm, max_abs, mean_abs, nonfinite, zeros) in layers.items():
            yield {
                "step": step, "layer": layer, "norm": norm, "max_abs": max_abs,
                "mean_abs": mean_abs, "nonfinite": nonfinite, "zeros": zeros,
            }  # fmt: skip


def _alert(alert: AlertRow) -> Row:
    return {
        "step": alert.step, "layer": alert.layer, "detector": alert.detector,
        "severity": alert.severity, "score": alert.score, "threshold": alert.threshold,
        "detail": alert.detail,
    }  # fmt: skip
