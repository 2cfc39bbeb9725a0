"""The tables of a trace.

Long form: a row per step, or per step and layer. Every table has `attempt` (a resume repeats
steps) and a signed 64-bit `step`. There are no keys: rows are appended, and the reader takes the
newest attempt of each step.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

FORMAT_VERSION: Final = 1

_COMMON: Final = [("attempt", pa.int32()), ("step", pa.int64())]

TABLES: Final[dict[str, pa.Schema]] = {
    name: pa.schema(_COMMON + columns)
    for name, columns in {
        # time: seconds since the epoch; loss: f64 of the exact f32; step_seconds: wall time;
        # skipped: the gradients were found unfit and no update was applied
        "steps": [
            ("time", pa.float64()),
            ("loss", pa.float64()),
            ("lr", pa.float64()),
            ("grad_norm", pa.float64()),
            ("loss_scale", pa.float64()),
            ("skipped", pa.bool_()),
            ("accumulation", pa.int32()),
            ("batch_hash", pa.int64()),
            ("step_seconds", pa.float64()),
            ("tokens", pa.int64()),
        ],
        # of the gradient, before clipping and without the loss scale. A step has one row per
        # layer, rank and scope:
        #   local       what this rank computed, before any reduction over ranks
        #   reduced     after it: the same on every rank
        #   sharded     of this rank's part of a sharded gradient; `copies` ranks hold that very
        #               part, and mean_abs is its sum over the number of elements of the whole
        #   replicated  of a gradient that every rank holds whole
        #   partial     of this rank's term of a sum over ranks that nobody has added
        # copies is null where it was not recorded: read it as 1. `whole` has the views over ranks.
        "layers": [
            ("layer", pa.int32()),
            ("norm", pa.float64()),
            ("max_abs", pa.float64()),
            ("mean_abs", pa.float64()),
            ("nonfinite", pa.int64()),
            ("zeros", pa.int64()),
            ("scope", pa.string()),
            ("copies", pa.int32()),
        ],
        # h, s1, s2 are unsigned 64-bit sums kept in signed columns
        "digests": [
            ("phase", pa.string()),
            ("kind", pa.string()),
            ("layer", pa.int32()),
            ("h", pa.int64()),
            ("s1", pa.int64()),
            ("s2", pa.int64()),
        ],
        "shadow": [
            ("loss", pa.float64()),
            ("repeat_loss", pa.float64()),
            ("batch_hash", pa.int64()),
            ("seconds", pa.float64()),
        ],
        # layer is null for what concerns the whole step; detail is a JSON object
        "alerts": [
            ("layer", pa.int32()),
            ("detector", pa.string()),
            ("score", pa.float64()),
            ("threshold", pa.float64()),
            ("severity", pa.string()),
            ("detail", pa.string()),
        ],
        # one row at opening and one at closing; the newest per incident counts
        "incidents": [
            ("incident", pa.int32()),
            ("opened", pa.int64()),
            ("closed", pa.int64()),
            ("verdict", pa.string()),
            ("evidence", pa.string()),
        ],
        "checkpoints": [
            ("path", pa.string()),
            ("format", pa.string()),
            ("bytes", pa.int64()),
            ("status", pa.string()),
            ("reason", pa.string()),
        ],
        "events": [("kind", pa.string()), ("detail", pa.string())],
    }.items()
}

DUCKDB_TYPES: Final = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}
