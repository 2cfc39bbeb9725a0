"""A campaign's file made by hand, in which it is known what each detector finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from sdc_guard.campaign.baselines.frozen_maximum import FrozenMaximum
from sdc_guard.campaign.baselines.nonfinite import Nonfinite
from sdc_guard.campaign.baselines.scorer import Entry, Scorer
from sdc_guard.campaign.baselines.sensor import SENSOR
from sdc_guard.campaign.series import Floats, Shapes, SignalSeries
from sdc_guard.campaign.tables import CREATE, TABLES, VERSION

MODEL, LAYERS, SNAPSHOT, AFTER, FAULT = "toy", 3, 110, 10, 112
CLEAN = 150  # steps of a clean run
PLAN = {
    "models": [MODEL], "calibration": [1], "judging": [2], "twins": [3], "snapshots": [SNAPSHOT],
    "after": AFTER, "clean_steps": CLEAN, "seed": 0,
}  # fmt: skip
USUAL = ("update_limit", "suspect", 115, None)  # what the guard says without a fault, too


class StandIn(Scorer):
    """In the place of the sensor: the largest element itself."""

    name = SENSOR

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        out[:-1] = series.max_abs[row]


def entries(shapes: Shapes) -> list[Entry]:
    """One baseline, the check for what is not finite, and the stand-in."""
    return [FrozenMaximum(), Nonfinite(), StandIn()]


# each trial: columns, changes of a signal (name, step, layer, value), alerts (detector, severity,
# step, layer); the site is that of the fault
TRIALS: dict[int, tuple[dict[str, Any], list[tuple[str, int, int, float]], list[Any]]] = {
    -1: ({"site": "none", "mix": "none", "fired": False, "changed": False, "fault_step": None},
         [], [USUAL]),
    0: ({"site": "weight", "layers_hit": [1]}, [], [("carried_digest", "proven", FAULT, 1)]),
    1: ({"site": "gradient", "layers_hit": [2], "replay_step": FAULT},
        [("norm", FAULT, 2, 50.0)], []),
    2: ({"site": "gradient", "layers_hit": [2], "replay_step": FAULT},
        [("max_abs", FAULT + 2, 0, 99.0)], []),
    3: ({"site": "gradient", "layers_hit": [0]}, [], [USUAL]),
    4: ({"site": "gradient", "layers_hit": [0], "replay_step": FAULT, "effect": "nonfinite"},
        [("nonfinite", FAULT + 1, 0, 4)], []),
    5: ({"site": "gradient", "layers_hit": [0], "effect": "masked"}, [], []),
    6: ({"site": "file", "layers_hit": [], "fault_step": SNAPSHOT + AFTER, "effect": "wrong",
         "manifest": True}, [], []),
    7: ({"site": "activation", "changed": False, "effect": "masked"}, [], []),
    8: ({"site": "activation", "status": "failed", "error": "IndexError: 300"}, [], []),
    9: ({"site": "activation", "fired": False, "changed": False, "effect": "masked"}, [], []),
    10: ({"site": "activation", "layers_hit": [1], "audited": True, "replay_step": FAULT},
         [], [("step_audit", "proven", FAULT, None)]),
    # an alarm before the fault is not the fault's
    11: ({"site": "activation", "layers_hit": [1]}, [("norm", FAULT - 1, 1, 80.0)], []),
}  # fmt: skip


def write_campaign(path: Path, version: int = VERSION) -> Path:
    """Write the file.

    Healthy norms are 1 but for 1.2 at one step of calibration, and 1.5 at one of judging: at the
    budget the baseline has the threshold 1.2 and one false incident in 40 steps, as published none.
    """
    connection = duckdb.connect(str(path))
    for statement in CREATE:
        connection.execute(statement)

    def add(table: str, rows: list[dict[str, Any]]) -> None:
        schema = TABLES[table]
        whole = [{name: row.get(name) for name in schema.names} for row in rows]
        connection.register("added", pa.Table.from_pylist(whole, schema=schema))
        connection.execute(f"INSERT INTO {table} SELECT * FROM added")
        connection.unregister("added")

    add("plan", [{"version": version, "content": json.dumps(PLAN)}])
    add("environment", [{"name": "torch", "value": "2.x"}])
    add(
        "layers",
        [
            {"model": MODEL, "layer": n, "name": "abc"[n], "numel": 10, "shape": [10]}
            for n in range(3)
        ],
    )
    for purpose, seed, steps, odd in (
        ("calibration", 1, CLEAN, [("norm", 130, 0, 1.2)]),
        ("judging", 2, CLEAN, [("norm", 130, 0, 1.5)]),
        ("twin", 3, SNAPSHOT + AFTER, []),
    ):
        which = {"purpose": purpose, "model": MODEL, "seed": seed}
        add("clean_runs", [{**which, "steps": steps}])
        add("clean_steps", [{**which, "step": step, "loss": 2.0} for step in range(1, steps + 1)])
        add("clean_signals", [{**which, **row} for row in signals(1, steps, odd)])
    said = {"detector": "gradient_norm", "severity": "suspect", "layer": 0}
    add("clean_alerts", [
        {"purpose": "judging", "model": MODEL, "seed": 2, "step": step, **said}
        for step in (20, 30, 90)
    ])  # fmt: skip
    for number, (columns, odd, alerts) in TRIALS.items():
        add("trials", [trial(number, columns)])
        if columns.get("status") == "failed":
            continue
        steps = range(SNAPSHOT + 1, SNAPSHOT + AFTER + 1)
        add("trial_steps", [{"trial": number, "step": step, "loss": 2.0} for step in steps])
        rows = signals(SNAPSHOT + 1, SNAPSHOT + AFTER, odd)
        add("trial_signals", [{"trial": number, **row} for row in rows])
        add("trial_alerts", [
            {"trial": number, "detector": name, "severity": severity, "step": step, "layer": layer}
            for name, severity, step, layer in alerts
        ])  # fmt: skip
    connection.close()
    return path


def trial(number: int, columns: dict[str, Any]) -> dict[str, Any]:
    """A row of the table `trials`."""
    usual = {
        "trial": number, "model": MODEL, "seed": 3, "snapshot": SNAPSHOT, "mix": "uniform",
        "kind": "bit", "fault_step": FAULT, "audited": False, "status": "done", "fired": True,
        "changed": True, "effect": None if number < 0 else "drift", "manifest": False,
        "guard_errors": 0,
    }  # fmt: skip
    return {**usual, **columns}


def signals(first: int, last: int, odd: list[tuple[str, int, int, float]]) -> list[dict[str, Any]]:
    """Rows of signals: norms of 1, but for what is odd."""
    rows = {
        (step, layer): {
            "step": step, "layer": layer, "norm": 1.0, "max_abs": 0.5, "mean_abs": 0.1,
            "nonfinite": 0, "zeros": 0,
        }
        for step in range(first, last + 1)
        for layer in range(LAYERS)
    }  # fmt: skip
    for name, step, layer, value in odd:
        rows[step, layer][name] = int(value) if name == "nonfinite" else value
        if name == "nonfinite":
            rows[step, layer]["norm"] = float(np.nan)
    return list(rows.values())
