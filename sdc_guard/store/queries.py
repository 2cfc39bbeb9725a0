"""The usual questions to a run, answered as Arrow tables.

Each takes a `RunReader`, which is safe to share between threads, and reads the run as the reader
has it: where a resume repeated steps, the newest attempt's.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import pyarrow as pa

from ..errors import UsageError
from .reader import RunReader

Measure = Literal["norm", "max_abs", "mean_abs", "nonfinite", "zeros"]

# A bucket keeps its least and its greatest finite value, each at its own step, and its first value
# that is none: so no spike is lost.
_THINNED: Final = """
    WITH found AS (
        SELECT step, {measure}::DOUBLE AS value FROM layers
        WHERE layer = $layer AND rank = $rank AND step BETWEEN $first AND $last
            AND {measure} IS NOT NULL
    ), span AS (
        SELECT min(step) AS low, (max(step) - min(step)) // $buckets + 1 AS width FROM found
    ), buckets AS (
        SELECT arg_min(step, value) FILTER (isfinite(value)) AS least,
            arg_max(step, value) FILTER (isfinite(value)) AS greatest,
            min(step) FILTER (NOT isfinite(value)) AS none
        FROM found, span GROUP BY (step - low) // width
    )
    SELECT step, value FROM found WHERE step IN (
        SELECT unnest([least, greatest, none]) FROM buckets
    ) ORDER BY step
"""
_ALL: Final = """
    SELECT step, {measure}::DOUBLE AS value FROM layers
    WHERE layer = $layer AND rank = $rank AND step BETWEEN $first AND $last
        AND {measure} IS NOT NULL
    ORDER BY step
"""
_WINDOW: Final = """
    SELECT step, rank, layer, name, norm, max_abs, mean_abs, nonfinite, zeros, scope
    FROM layers LEFT JOIN layer_names USING (layer)
    WHERE step BETWEEN $first AND $last ORDER BY step, rank, layer
"""
_ANOMALIES: Final = """
    WITH usual AS (
        SELECT rank, scope, layer, avg(ln(norm)) AS middle, stddev_pop(ln(norm)) AS spread
        FROM layers WHERE norm > 0 AND isfinite(norm) GROUP BY rank, scope, layer
    ), judged AS (
        SELECT step, rank, layer, scope, norm,
            CASE WHEN NOT isfinite(norm) THEN 'infinity'::DOUBLE
                WHEN norm > 0 AND spread > 0 THEN (ln(norm) - middle) / spread ELSE 0 END AS z,
            CASE WHEN NOT isfinite(norm) THEN 'infinity'::DOUBLE
                WHEN norm > 0 THEN norm / exp(middle) ELSE 1 END AS ratio
        FROM layers LEFT JOIN usual USING (rank, scope, layer) WHERE norm IS NOT NULL
    ), first AS (
        SELECT * FROM judged ORDER BY {order} DESC, step, rank, layer LIMIT $count
    )
    SELECT step, rank, layer, name, scope, norm, z, ratio
    FROM first LEFT JOIN layer_names USING (layer) ORDER BY {order} DESC, step, rank, layer
"""
_ORDERS: Final = {"z": "abs(z)", "ratio": "greatest(ratio, 1 / ratio)"}
_ALERTS: Final = """
    SELECT step, rank, layer, name, detector, score, threshold, severity, detail
    FROM alerts LEFT JOIN layer_names USING (layer)
    WHERE step BETWEEN $first AND $last ORDER BY step, rank, layer, detector
"""
_CHECKPOINTS: Final = """
    SELECT step, rank, path, format, bytes, status, reason FROM checkpoints
    WHERE step BETWEEN $first AND $last ORDER BY step, rank, path
"""
_LEAST, _GREATEST = -(2**63), 2**63 - 1


def layer_over_steps(
    reader: RunReader,
    layer: int | str,
    *,
    measure: Measure = "norm",
    rank: int = 0,
    first: int = _LEAST,
    last: int = _GREATEST,
    points: int | None = None,
) -> pa.Table:
    """One measure of one layer over the steps.

    Args:
        reader: the run.
        layer: its number or its name; an alias is a name too.
        measure: the column of `layers`.
        rank: of which rank.
        first, last: steps, both included.
        points: at most so many rows, 3 or more. The steps are cut into points // 3 buckets of
            equal width, and each keeps its least and its greatest finite value at their own
            steps, and its first value that is not finite: a spike of one step survives.

    Returns:
        columns step (int64) and value (float64), by step. A step has several rows where several
        scopes were recorded.

    Raises:
        UsageError: no such layer or measure, or too few points.
    """
    if measure not in get_args(Measure):
        raise UsageError(
            f"no measure {measure!r}", next_step=f"one of {', '.join(get_args(Measure))}"
        )
    values = {"layer": _number(reader, layer), "rank": rank, "first": first, "last": last}
    if points is None:
        return reader.arrow(_ALL.format(measure=measure), values)
    if points < 3:
        raise UsageError(f"{points} points are too few", next_step="give 3 or more")
    return reader.arrow(_THINNED.format(measure=measure), {**values, "buckets": points // 3})


def all_layers(reader: RunReader, first: int, last: int) -> pa.Table:
    """Every measure of every layer and rank in a window of steps, both ends included.

    Returns:
        columns step, rank, layer, name and the measures of `layers`, by step, rank and layer.
    """
    return reader.arrow(_WINDOW, {"first": first, "last": last})


def top_anomalies(
    reader: RunReader, count: int = 20, *, by: Literal["z", "ratio"] = "z"
) -> pa.Table:
    """The gradient norms that are farthest from what is usual for their layer.

    Over the finite positive norms g of one layer, rank and scope, with the mean m and the standard
    deviation s (of the population) of ln g:

        z = (ln g − m) / s        ratio = g / exp(m)

    The greatest |z|, or the greatest of ratio and 1/ratio, come first; a norm that is NaN or
    infinite has both infinite. It ranks what to look at; the alerts are the detectors' verdicts.

    Args:
        reader: the run.
        count: at most so many rows.
        by: z or ratio.

    Returns:
        columns step, rank, layer, name, scope, norm, z, ratio.

    Raises:
        UsageError: `by` is neither.
    """
    if by not in _ORDERS:
        raise UsageError(f"no order {by!r}", next_step="z or ratio")
    return reader.arrow(_ANOMALIES.format(order=_ORDERS[by]), {"count": count})


def alerts(reader: RunReader, first: int = _LEAST, last: int = _GREATEST) -> pa.Table:
    """The alerts of a window of steps, both ends included.

    Returns:
        columns step, rank, layer, name, detector, score, threshold, severity, detail; layer and
        name are null for what concerns the whole step.
    """
    return reader.arrow(_ALERTS, {"first": first, "last": last})


def checkpoints(reader: RunReader, first: int = _LEAST, last: int = _GREATEST) -> pa.Table:
    """What was recorded of checkpoints in a window of steps, both ends included.

    Returns:
        columns step, rank, path, format, bytes, status, reason; a row per time that one was
        written or judged.
    """
    return reader.arrow(_CHECKPOINTS, {"first": first, "last": last})


def _number(reader: RunReader, layer: int | str) -> int:
    for known in reader.run_file.layers:
        if layer in (known.id, known.name, *known.aliases):
            return known.id
    raise UsageError(
        f"the run has no layer {layer!r}",
        where=str(reader.run),
        next_step="see the table layer_names",
    )
