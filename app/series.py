"""Curves over the steps, thinned in DuckDB so that no spike is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdc_guard.store.trace_reader import TraceReader

MAX_POINTS = 1_600  # of a curve: two for each pair of a chart's pixels
MAX_MARKS = 500

_SOURCES = {
    "loss": "SELECT step, loss AS value FROM steps",
    "grad_norm": "SELECT step, grad_norm AS value FROM steps",
    # of several ranks a step's own row holds what that rank has of the gradient
    "whole_grad_norm": "SELECT step, norm AS value FROM whole_steps",
    "shadow": "SELECT step, loss AS value FROM shadow",
    "layer": "SELECT step, norm AS value FROM whole_layers WHERE layer = $layer",
}

# A bin keeps its smallest and its largest value at their own steps. What cannot be drawn is set
# apart: it makes averages NaN, sorts above every number and breaks a logarithmic axis.
_MARKED = """
    WITH kept AS (
        SELECT step, value, CASE
            WHEN isnan(value) THEN 'NaN' WHEN isinf(value) THEN 'infinite'
            WHEN $log AND value <= 0 THEN 'zero or less' END AS what
        FROM ({source}) WHERE value IS NOT NULL AND step BETWEEN $first AND $last
    ), span AS (
        SELECT min(step) AS low, CASE WHEN max(step) - min(step) < $whole THEN 1
            ELSE (max(step) - min(step)) // $bins + 1 END AS width FROM kept
    )
"""
_BINS = """
    SELECT min(step), min(value) FILTER (what IS NULL), max(value) FILTER (what IS NULL),
        arg_min(step, value) FILTER (what IS NULL), arg_max(step, value) FILTER (what IS NULL),
        any_value(width)
    FROM kept, span GROUP BY (step - low) // width ORDER BY 1
"""
_MARKS = """
    SELECT min(step) AS step, what, count(*) AS count
    FROM kept, span WHERE what IS NOT NULL GROUP BY what, (step - low) // width ORDER BY step
"""

_ALERT_MARKS = """
    SELECT min(step) AS step, severity, count(*) AS count,
        string_agg(DISTINCT detector, ', ' ORDER BY detector) AS detectors,
        count(DISTINCT layer) AS layers, coalesce(min(name), '') AS layer
    FROM alerts LEFT JOIN layer_names USING (layer) WHERE step BETWEEN $first AND $last
    GROUP BY severity, (step - $first) // $width ORDER BY 1
"""
_SPAN = """
    SELECT min(step), max(step) FROM (
        SELECT step FROM steps UNION ALL SELECT step FROM shadow
        UNION ALL SELECT step FROM alerts UNION ALL SELECT step FROM checkpoints
    )
"""


@dataclass(frozen=True)
class Series:
    """A curve.

    Attributes:
        points: columns step, value; so many rows as `series` says; NaN where the line is to break.
        marks: columns step, what, count: values that cannot be drawn, at most MAX_MARKS a kind.
        width: steps per bin; 1 when nothing is left out.
    """

    points: pd.DataFrame
    marks: pd.DataFrame
    width: int

    @property
    def undrawn(self) -> dict[str, int]:
        """How many values of each kind cannot be drawn."""
        counts = self.marks.groupby("what")["count"].sum()
        return {str(what): int(count) for what, count in counts.items()}

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self.points.empty


def span(reader: TraceReader) -> tuple[int, int] | None:
    """First and last step that anything is known of, or None."""
    first, last = reader.rows(_SPAN)[0]
    return None if first is None else (first, last)


def series(
    reader: TraceReader,
    name: str,
    first: int,
    last: int,
    *,
    layer: str | None = None,
    log: bool = False,
    max_points: int = MAX_POINTS,
) -> Series:
    """The curve `name` (loss, grad_norm, shadow, layer) of the steps `first` to `last`.

    Of the loss several ranks' values of a step are one bin's values: the curve spans their range.
    Norms are those of the whole gradient.

    Args:
        reader: of the run.
        name: what to draw; "layer" is the gradient norm of `layer`.
        first, last: steps, both included.
        layer: a layer's name.
        log: the axis is logarithmic, so what is not positive cannot be drawn.
        max_points: at most so many points, at least 2; twice as many where several ranks' losses
            are drawn step by step.
    """
    if name == "grad_norm" and reader.run_file.world_size > 1:
        name = "whole_grad_norm"
    marked = _MARKED.format(source=_SOURCES[name])
    asked: dict[str, Any] = {"first": first, "last": last, "log": log}
    if name == "layer":
        # by its number, which the rows are sorted by: a name would be looked up in all of them
        asked["layer"] = next((x.id for x in reader.run_file.named if x.name == layer), -1)
    bins = reader.rows(marked + _BINS, asked | {"bins": max_points // 2, "whole": max_points})
    marks = reader.arrow(marked + _MARKS, asked | {"bins": MAX_MARKS, "whole": 0}).to_pandas()
    points = [point for row in bins for point in _points(*row[:5])]
    return Series(
        pd.DataFrame(points, columns=["step", "value"]).astype({"value": "float64"}),
        marks,
        bins[0][5] if bins else 1,
    )


def _points(
    first: int, low: float | None, high: float | None, at_low: int, at_high: int
) -> list[tuple[int, float]]:
    if low is None or high is None:
        return [(first, float("nan"))]
    return sorted({(at_low, low), (at_high, high)})


def alert_marks(reader: TraceReader, first: int, last: int) -> pd.DataFrame:
    """Alerts to mark: step, severity, count, detectors, layers, layer; few enough to draw."""
    width = (last - first) // MAX_MARKS + 1
    asked = {"first": first, "last": last, "width": width}
    return reader.arrow(_ALERT_MARKS, asked).to_pandas()


def event_marks(reader: TraceReader, first: int, last: int) -> pd.DataFrame:
    """Events to mark: step, kind; few enough to draw."""
    query = """
        SELECT min(step) AS step, kind FROM events
        WHERE step BETWEEN $first AND $last AND kind <> 'replicas equal'
        GROUP BY kind, (step - $first) // $width ORDER BY 1
    """
    width = (last - first) // MAX_MARKS + 1
    return reader.arrow(query, {"first": first, "last": last, "width": width}).to_pandas()
