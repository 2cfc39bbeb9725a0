"""The tables of a campaign's DuckDB file: what is measured, for whoever scores it.

One process writes, a transaction per finished run or trial. No keys and no order: sort by `trial`
or (`purpose`, `model`, `seed`, `step`). What differs from one execution of the same plan to the
next is in `timing` and `environment` alone; all other rows are the same bit for bit.

Steps are the guard's, counted from 1. `layer` is the number of a parameter, named in `layers`.
Signals are of the gradient, before clipping: norm, max_abs and mean_abs f64; nonfinite and zeros
are counts of elements.

Three kinds of clean runs (no fault), told apart by `purpose` and by their seeds:

    calibration   thresholds are set on these
    judging       false alarms are counted on these
    twin          what the trials are compared with; from step 1 to the end of the last trial. Its
                  steps up to a trial's `snapshot` are what a detector has seen before the trial

A trial starts from the state that its twin had after step `snapshot`, and trains `after` steps (see
`plan`), `snapshot` + 1 to `snapshot` + `after`. Trials without a fault, the controls, have negative
numbers and the site "none".
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

VERSION: Final = 2

PURPOSES: Final = ("calibration", "judging", "twin")

# of a trial in which training goes on; of one whose checkpoint's file is damaged afterwards
EFFECTS: Final = ("masked", "drift", "spike", "nonfinite")
FILE_EFFECTS: Final = ("masked", "wrong", "unreadable")

_SIGNALS: Final = [
    ("layer", pa.int32()),
    ("norm", pa.float64()),
    ("max_abs", pa.float64()),
    ("mean_abs", pa.float64()),
    ("nonfinite", pa.int64()),
    ("zeros", pa.int64()),
]
# layer is null for what concerns the whole step; detail is the guard's JSON object
_ALERTS: Final = [
    ("layer", pa.int32()),
    ("detector", pa.string()),
    ("severity", pa.string()),
    ("score", pa.float64()),
    ("threshold", pa.float64()),
    ("detail", pa.string()),
]
_CLEAN: Final = [
    ("purpose", pa.string()),
    ("model", pa.string()),
    ("seed", pa.int64()),
    ("step", pa.int64()),
]
_TRIAL: Final = [("trial", pa.int64()), ("step", pa.int64())]

TABLES: Final[dict[str, pa.Schema]] = {
    name: pa.schema(columns)
    for name, columns in {
        # one row; content: JSON of the plan (seed, models, mixes, seeds, snapshots, after, …)
        "plan": [("version", pa.int32()), ("content", pa.string())],
        # versions, machine, and when it was begun
        "environment": [("name", pa.string()), ("value", pa.string())],
        "layers": [
            ("model", pa.string()),
            ("layer", pa.int32()),
            ("name", pa.string()),
            ("numel", pa.int64()),
            ("shape", pa.list_(pa.int64())),
        ],
        # a row per finished clean run; seed as in the others
        "clean_runs": [
            ("purpose", pa.string()),
            ("model", pa.string()),
            ("seed", pa.int64()),
            ("steps", pa.int64()),
        ],
        # state: hash of the whole state after the step (parameters, buffers, optimizer, random
        # generator, data position), of twins alone
        "clean_steps": [
            *_CLEAN,
            ("loss", pa.float64()),
            ("grad_norm", pa.float64()),
            ("batch_hash", pa.int64()),
            ("state", pa.string()),
        ],
        "clean_signals": [*_CLEAN, *_SIGNALS],
        # what the guard said although nothing was injected
        "clean_alerts": [*_CLEAN, *_ALERTS],
        "trials": [
            ("trial", pa.int64()),
            ("model", pa.string()),
            ("seed", pa.int64()),  # of the twin
            ("snapshot", pa.int64()),  # the step after whose result it begins
            ("site", pa.string()),  # of inject.fault.SITES, or "none"
            ("mix", pa.string()),  # "uniform", "realistic", or "none"
            ("kind", pa.string()),  # of fault within its mix, see mix.py
            # the step that meets the fault; of site "file" the step of the checkpoint
            ("fault_step", pa.int64()),
            ("fault", pa.string()),  # JSON of the Fault
            ("audited", pa.bool_()),  # whether the guard ran each step again before it was applied
            ("status", pa.string()),  # "done", or "failed": then `error` says why, the rest is null
            ("error", pa.string()),
            # what the injector did
            ("fired", pa.bool_()),
            ("changed", pa.bool_()),  # whether any bit changed at the injection
            ("tensor", pa.string()),  # parameter, buffer, module or file that was hit
            # numbers of the layers that were hit: the parameter, or those of the module
            ("layers_hit", pa.list_(pa.int32())),
            ("words", pa.int64()),  # elements that changed
            ("bits", pa.int64()),  # bits that changed
            ("touched", pa.string()),  # JSON [[index, before, after], …], the first 64
            # what became of it, against the twin, by hashes of the whole state after each step
            ("effect", pa.string()),  # of EFFECTS or FILE_EFFECTS; null of controls
            ("first_differs", pa.int64()),  # first step that left another state; null for never
            ("differing_first", pa.int64()),  # tensors that differ after that step
            ("differing_last", pa.int64()),  # after the last step
            # largest of max(r, 1/r) over steps from the fault on, r = value / the twin's; infinite
            # where one is zero or not finite and the other is not
            ("norm_ratio", pa.float64()),  # over layers, too
            ("loss_ratio", pa.float64()),
            # what a replay of these steps afterwards would prove: the guard's trace of the trial
            # against that of its twin, as `sdc-bisect verify` compares them
            ("replay_step", pa.int64()),  # first step whose rows differ; null for none
            ("replay_what", pa.string()),  # what differs there: "batch, loss, gradients, …"
            # the checkpoint saved at the end
            ("checkpoint_status", pa.string()),  # when it was sealed
            ("checkpoint_reason", pa.string()),
            (
                "manifest",
                pa.bool_(),
            ),  # whether its bytes, read later, are others
            ("manifest_reason", pa.string()),
            ("guard_errors", pa.int64()),  # guard.health.errors
            # of an audited trial: what the audit of the fault's step said, "sound",
            # "intermittent", "not comparable", …; its alerts are in trial_alerts as "step_audit"
            ("audit_verdict", pa.string()),
        ],
        # differing: tensors of the whole state that differ from the twin's after the step
        "trial_steps": [
            *_TRIAL,
            ("loss", pa.float64()),
            ("grad_norm", pa.float64()),
            ("batch_hash", pa.int64()),
            ("differing", pa.int64()),
        ],
        "trial_signals": [*_TRIAL, *_SIGNALS],
        # what the guard said, its sensor as warm as the twin's was at `snapshot`
        "trial_alerts": [*_TRIAL, *_ALERTS],
        # seconds: by the clock; cpu: of one core; rss: bytes of the process's memory after it; of
        # clean runs the trial is null
        "timing": [
            ("trial", pa.int64()),
            ("what", pa.string()),
            ("seconds", pa.float64()),
            ("cpu", pa.float64()),
            ("rss", pa.int64()),
        ],
    }.items()
}

_TYPES: Final = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
    pa.list_(pa.int32()): "INTEGER[]",
    pa.list_(pa.int64()): "BIGINT[]",
}

# the statements that make an empty file
CREATE: Final = tuple(
    f"CREATE TABLE {name} ({', '.join(f'{c.name} {_TYPES[c.type]}' for c in schema)})"
    for name, schema in TABLES.items()
)
