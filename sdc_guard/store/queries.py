"""The usual questions to a run, answered as Arrow tables.

Each takes a `RunReader`, which is safe to share between threads, and reads the run as the reader
has it: where a resume repeated steps, the newest attempt's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import pyarrow as pa

from ..errors import UsageError
from .reader import RunReader

Measure = Literal["norm", "max_abs", "mean_abs", "nonfinite", "zeros", "scope"]

_FOUND: Final = """
    SELECT step, {measure}::DOUBLE AS value FROM layers
    WHERE layer = $layer AND rank = $rank AND step BETWEEN $first AND $last
        AND {measure} IS NOT NULL
"""
# A bucket keeps its least and its greatest finite value, each at its own step, and its first value
# that is none: so no spike is lost. HUGEINT, because two steps may be 2⁶⁴ apart.
_THINNED: Final = """
    WITH found AS MATERIALIZED ({found}), span AS (
        SELECT min(step)::HUGEINT AS low, (max(step)::HUGEINT - low) // $buckets + 1 AS width,
            count(*) > $points AS many FROM found
    ), buckets AS (
        SELECT arg_min({{'step': step, 'value': value}}, value) FILTER (isfinite(value)) AS least,
            arg_max({{'step': step, 'value': value}}, value) FILTER (isfinite(value)) AS greatest,
            arg_min({{'step': step, 'value': value}}, step) FILTER (NOT isfinite(value)) AS none
        FROM found, span WHERE many GROUP BY (step - low) // width
    ), kept AS (
        SELECT DISTINCT unnest([least, greatest, none]) AS point FROM buckets
    )
    SELECT point.step AS step, point.value AS value FROM kept WHERE point IS NOT NULL
    UNION ALL SELECT step, value FROM found, span WHERE NOT many ORDER BY step
"""
_WINDOW: Final = """
    SELECT step, rank, layer, {measures} FROM layers WHERE step BETWEEN $first AND $last
"""
# One number for layer, rank and scope: grouping by it takes a third of the time of grouping by
# three columns, one of them text. Within a group z grows with the norm, so that only the groups
# whose least or greatest norm is among the `count` farthest have to be read a second time.
_GROUP: Final = """((layer::BIGINT * 16777216 + rank) * 8 + CASE scope WHEN 'local' THEN 1
    WHEN 'reduced' THEN 2 WHEN 'sharded' THEN 3 WHEN 'replicated' THEN 4 WHEN 'partial' THEN 5
    ELSE 0 END)"""
_LARGEST: Final = "1.7976931348623157e308"
_ANOMALIES: Final = """
    WITH usual AS MATERIALIZED (
        SELECT place, least, greatest, logs / rows AS middle,
            squares / rows - middle * middle AS variance,
            if(variance > 1e-12 * (1 + middle * middle), sqrt(variance), NULL) AS spread
        FROM (
            SELECT place, sum(log) AS logs, sum(log * log) AS squares, count(*) AS rows,
                min(norm) AS least, max(norm) AS greatest
            FROM (
                SELECT {group} AS place, norm, ln(norm) AS log
                FROM layers WHERE norm > 0 AND norm <= {largest}
            ) GROUP BY place
        )
    ), extreme AS (
        SELECT place, middle, spread FROM usual
        ORDER BY greatest({least}, {greatest}) DESC NULLS LAST LIMIT $count
    ), finite AS (
        SELECT step, rank, layer, scope, norm,
            coalesce((ln(norm) - middle) / spread, 0) AS z, norm / exp(middle) AS ratio
        FROM layers JOIN extreme ON {group} = place
        WHERE layer IN (SELECT place // 8 // 16777216 FROM extreme)
            AND norm > 0 AND norm <= {largest}
    ), judged AS (
        SELECT * FROM finite UNION ALL
        SELECT step, rank, layer, scope, norm, 'infinity'::DOUBLE, 'infinity'::DOUBLE FROM layers
        WHERE norm > {largest}
    ), farthest AS (
        SELECT * FROM judged ORDER BY {order} DESC, step, rank, layer LIMIT $count
    )
    SELECT step, rank, layer, name, scope, norm, z, ratio
    FROM farthest LEFT JOIN layer_names USING (layer) ORDER BY {order} DESC, step, rank, layer
"""
_DISTANCES: Final = {
    "z": ("abs(z)", "abs(ln({0}) - middle) / spread"),
    "ratio": ("greatest(ratio, 1 / ratio)", "abs(ln({0}) - middle)"),
}
_ALERTS: Final = """
    SELECT step, rank, layer, name, detector, score, threshold, severity, detail
    FROM alerts LEFT JOIN layer_names USING (layer)
    WHERE step BETWEEN $first AND $last ORDER BY step, rank, layer, detector
"""
_CHECKPOINTS: Final = """
    SELECT step, rank, path, format, bytes, status, reason FROM checkpoints
    WHERE step BETWEEN $first AND $last ORDER BY step, rank, path
"""
_LEFT: Final = """
    SELECT step, kind, name, h, s1, s2 FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND rank = $rank AND step BETWEEN $first AND $last
"""
# 1.4826 times the median distance from the median estimates the standard deviation of a normal
# distribution, and half of all values may be anything.
_STEP_TIMES: Final = """
    WITH own AS (
        SELECT rank, count(*) AS steps, median(step_seconds) AS seconds FROM steps
        WHERE step BETWEEN $first AND $last AND step_seconds > 0 AND isfinite(step_seconds)
        GROUP BY rank
    ), usual AS (SELECT median(seconds) AS middle FROM own), spread AS (
        SELECT any_value(middle) AS middle, 1.4826 * median(abs(seconds - middle)) AS scale
        FROM own, usual
    )
    SELECT rank, steps, seconds, seconds / middle AS ratio,
        if(scale > 0, (seconds - middle) / scale, NULL) AS z
    FROM own, spread ORDER BY ratio DESC, rank
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
        points: at most so many rows, 3 or more. Of more than that the steps are cut into
            points // 3 buckets of equal width, and each keeps its least and its greatest finite
            value at their own steps, and its first value that is not finite: a spike of one step
            survives.

    Returns:
        columns step (int64) and value (float64), by step. A step has several rows where several
        scopes were recorded.

    Raises:
        UsageError: no such layer or measure, or too few points.
    """
    if measure == "scope":
        raise UsageError("scope is no number", next_step="a measure")
    _check(measure)
    values = {"layer": _number(reader, layer), "rank": rank, "first": first, "last": last}
    found = _FOUND.format(measure=measure)
    if points is None:
        return reader.arrow(f"{found} ORDER BY step", values)
    if points < 3:
        raise UsageError(f"{points} points are too few", next_step="give 3 or more")
    more = {"points": points, "buckets": points // 3}
    return reader.arrow(_THINNED.format(found=found), {**values, **more})


def all_layers(
    reader: RunReader, first: int, last: int, *, measures: Sequence[Measure] = ("norm",)
) -> pa.Table:
    """Measures of every layer and rank in a window of steps, both ends included.

    Args:
        reader: the run.
        first, last: steps.
        measures: columns of `layers`; "scope" too, where several were recorded.

    Returns:
        columns step, rank, layer and the measures; rows in no order, which a million of them
        would take longer to get than to be read.

    Raises:
        UsageError: no such measure.
    """
    for measure in measures:
        _check(measure)
    values = {"first": first, "last": last}
    return reader.arrow(_WINDOW.format(measures=", ".join(measures)), values)


def top_anomalies(
    reader: RunReader, count: int = 20, *, by: Literal["z", "ratio"] = "z"
) -> pa.Table:
    """The gradient norms that are farthest from what is usual for their layer.

    Over the finite positive norms g of one layer, rank and scope, with the mean m and the standard
    deviation s (of the population) of ln g:

        z = (ln g − m) / s        ratio = g / exp(m)

    The greatest |z|, or the greatest of ratio and 1/ratio, come first; a norm that is NaN or
    infinite has both infinite, and one of zero has none. With s below 10⁻⁶ · √(1 + m²), where the
    sums that it comes from say nothing, z is 0. It ranks what to look at; the alerts are the
    detectors' verdicts.

    Args:
        reader: the run.
        count: at most so many rows.
        by: z or ratio.

    Returns:
        columns step, rank, layer, name, scope, norm, z, ratio.

    Raises:
        UsageError: `by` is neither.
    """
    if by not in _DISTANCES:
        raise UsageError(f"no order {by!r}", next_step="z or ratio")
    order, distance = _DISTANCES[by]
    query = _ANOMALIES.format(
        group=_GROUP,
        largest=_LARGEST,
        order=order,
        least=distance.format("least"),
        greatest=distance.format("greatest"),
    )
    return reader.arrow(query, {"count": count})


def step_times(reader: RunReader, first: int = _LEAST, last: int = _GREATEST) -> pa.Table:
    """How long each rank's steps took, the slowest rank first.

    A rank that throttles or has a bad link is no corruption, and raises no alert; it is seen here.
    In synchronous training every rank waits for the slowest in each step: then all of them are
    equally slow, and that one of them causes it can not be seen from these times. They tell ranks
    apart that do not wait for each other at each step: single-rank jobs that share a run,
    training that synchronises every so many steps, ranks that are slow outside of the
    collectives' reach.

    Args:
        reader: the run.
        first, last: steps, both included.

    Returns:
        columns rank, steps (how many have a time), seconds (their median), ratio (to the median
        of the ranks' medians), z (the distance from it in robust standard deviations over the
        ranks; null where most ranks are equal to the last bit).
    """
    return reader.arrow(_STEP_TIMES, {"first": first, "last": last})


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


def left_by_steps(reader: RunReader, rank: int, first: int, last: int) -> pa.Table:
    """The digests of what steps left on a rank, both ends included.

    Returns:
        columns step, kind, name (of the layer), h, s1, s2.
    """
    return reader.arrow(_LEFT, {"rank": rank, "first": first, "last": last})


def _check(measure: str) -> None:
    if measure not in get_args(Measure):
        raise UsageError(
            f"no measure {measure!r}", next_step=f"one of {', '.join(get_args(Measure))}"
        )


def _number(reader: RunReader, layer: int | str) -> int:
    for known in reader.run_file.layers:
        if layer in (known.id, known.name, *known.aliases):
            return known.id
    raise UsageError(
        f"the run has no layer {layer!r}",
        where=str(reader.run),
        next_step="see the table layer_names",
    )
