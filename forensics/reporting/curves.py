"""Series over the steps, thinned in DuckDB so that no spike is lost."""

from __future__ import annotations

from typing import Final

from sdc_guard.store.trace_reader import TraceReader

from ..compare_sql import STATE_ONLY
from .facts import Curve

MAX_POINTS: Final = 2_000  # of a line
MAX_MARKS: Final = 200  # bins of values that cannot be drawn, and of alerts

_SOURCES: Final = {
    "loss": "SELECT step, loss AS value FROM steps",
    "gradient norm": "SELECT step, grad_norm AS value FROM steps",
    "state digested": f"""
        SELECT steps.step, 100 * coalesce(any_value(n), 0) / (
            SELECT max(n) FROM (
                SELECT count(*) AS n FROM digests WHERE phase = 'after' AND {STATE_ONLY}
                GROUP BY step
            )
        ) AS value
        FROM steps LEFT JOIN (
            SELECT step, count(*) AS n FROM digests WHERE phase = 'after' AND {STATE_ONLY}
            GROUP BY step
        ) AS counted ON counted.step = steps.step
        GROUP BY steps.step
    """,
}
# of several ranks a step's own row holds what that rank has of the gradient
_WHOLE_NORM: Final = "SELECT step, norm AS value FROM whole_steps"
# a bin keeps its smallest and its largest value, at their own steps
_KEPT: Final = """
    WITH kept AS MATERIALIZED (SELECT step, value FROM ({source}) WHERE value IS NOT NULL),
    span AS (SELECT min(step) AS low, (max(step) - min(step)) // $bins + 1 AS width FROM kept)
"""
_BINS: Final = """
    SELECT arg_min(step, value), min(value), arg_max(step, value), max(value), any_value(width)
    FROM kept, span WHERE isfinite(value) GROUP BY (step - low) // width ORDER BY min(step)
"""
_UNDRAWN: Final = """
    SELECT min(step), CASE WHEN isnan(value) THEN 'NaN' ELSE 'infinite' END AS what, count(*)
    FROM kept, span WHERE NOT isfinite(value) GROUP BY what, (step - low) // width ORDER BY 1, 2
"""
_ALERTS: Final = """
    WITH span AS (
        SELECT min(step) AS low, (max(step) - min(step)) // $bins + 1 AS width FROM alerts
    )
    SELECT min(step), coalesce(severity, '') AS what FROM alerts, span
    GROUP BY what, (step - low) // width ORDER BY 1, 2
"""


def curves(reader: TraceReader) -> tuple[Curve, ...]:
    """Loss, gradient norm, and the share of the state that was digested in percent of the most.

    What was never recorded is left out.
    """
    found = (curve(reader, name) for name in _SOURCES)
    return tuple(one for one in found if one.points or one.undrawn)


def curve(reader: TraceReader, name: str, max_points: int = MAX_POINTS) -> Curve:
    """One of them, of at most so many points."""
    source = _SOURCES[name]
    if name == "gradient norm" and reader.run_file.world_size > 1:
        source = _WHOLE_NORM
    kept = _KEPT.format(source=source)
    rows = reader.rows(kept + _BINS, {"bins": max_points // 2})
    points = {
        point: None
        for low_at, low, high_at, high, _ in rows
        for point in sorted({(low_at, low), (high_at, high)})
    }
    undrawn = reader.rows(kept + _UNDRAWN, {"bins": MAX_MARKS})
    return Curve(name, tuple(points), tuple(undrawn), rows[0][4] if rows else 1)


def alert_steps(reader: TraceReader) -> tuple[tuple[int, str], ...]:
    """Where alerts are: the first (step, severity) of each bin."""
    return tuple(reader.rows(_ALERTS, {"bins": MAX_MARKS}))
