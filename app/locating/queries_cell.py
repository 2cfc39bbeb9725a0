"""What the page Locate asks about one layer at one step."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
import pyarrow as pa

from sdc_guard.store.trace_reader import TraceReader

from ..details import detail_of
from .statistics_sql import PLACE, Statistic

PEERS: Final = 16  # ranks that are drawn one by one
_NEAR: Final = 2_000  # rows of alerts and events at most

_VALUES = """
    SELECT rank, attempt, coalesce(scope, '') AS scope, norm, max_abs, mean_abs, nonfinite, zeros,
        {compared} AS x, {place} AS place
    FROM {source} WHERE layer = $layer AND step = $step ORDER BY scope, rank
"""
_CURVES = """
    SELECT step, rank, {column}::DOUBLE AS value FROM layers
    WHERE layer = $layer AND step BETWEEN $first AND $last AND coalesce(scope, '') = $scope
        AND {column} IS NOT NULL ORDER BY rank, step
"""
_BAND = """
    SELECT step, min(value) FILTER (isfinite(value)) AS low,
        max(value) FILTER (isfinite(value)) AS high,
        median(value) FILTER (isfinite(value)) AS middle
    FROM (SELECT step, rank, {column}::DOUBLE AS value FROM layers
        WHERE layer = $layer AND step BETWEEN $first AND $last AND coalesce(scope, '') = $scope)
    WHERE rank <> $rank GROUP BY step ORDER BY step
"""
_CARRIED = """
    SELECT found.kind, count(*) AS compared, count(*) FILTER (
        (found.h, found.s1, found.s2) IS DISTINCT FROM (left_.h, left_.s1, left_.s2)) AS differ
    FROM digests AS found JOIN digests AS left_ USING (rank, kind, layer)
    WHERE found.layer = $layer AND found.rank = $rank AND found.step = $step
        AND found.phase = 'before' AND left_.phase = 'after' AND left_.step = $step - 1
        AND found.attempt = left_.attempt
    GROUP BY found.kind
"""
_VOTES = """
    SELECT kind, step, list(ranks ORDER BY len(ranks) DESC, ranks[1]) FROM (
        SELECT kind, step, h, s1, s2, list(DISTINCT rank ORDER BY rank) AS ranks FROM digests
        WHERE layer = $layer AND step IN ($step, $step - 1) AND phase = 'after' GROUP BY ALL
    ) GROUP BY kind, step
"""
_REFRESHED = """
    SELECT count(*) > 0 FROM events WHERE kind = 'refresh' AND rank = $rank AND step = $step
"""
_ALERTS = """
    SELECT rank, detector, score, threshold, severity, detail FROM alerts
    WHERE step = $step AND (layer = $layer OR layer IS NULL) ORDER BY severity, rank, detector
    LIMIT {limit}
"""
_DEVICES = """
    SELECT rank, arg_max(detail, step) FROM events
    WHERE kind = 'known answer' AND step <= $step GROUP BY rank
"""
# A mark per layer and bin, the proven ones first.
_ALERT_CELLS = """
    SELECT layer, step // $width AS bin, min(severity) AS severity, count(*) AS count,
        string_agg(DISTINCT detector, ', ' ORDER BY detector) AS detectors, min(step) AS step
    FROM alerts WHERE layer IS NOT NULL AND step BETWEEN $first AND $last
        AND ($rank IS NULL OR rank = $rank)
    GROUP BY layer, bin ORDER BY severity, count DESC, layer, bin LIMIT {limit}
"""


def values_at(reader: TraceReader, statistic: Statistic, layer: int, step: int) -> pd.DataFrame:
    """Every rank's statistics of a layer at a step.

    Returns:
        columns rank, attempt, scope, the statistics, x (what is compared), place.
    """
    query = _VALUES.format(compared=statistic.compared, place=PLACE, source=statistic.source)
    return reader.arrow(query, {"layer": layer, "step": step}).to_pandas()


def curves(
    reader: TraceReader, statistic: Statistic, layer: int, scope: str, first: int, last: int
) -> pd.DataFrame:
    """A layer's statistic over a window of steps: columns step, rank, value."""
    asked = {"layer": layer, "scope": scope, "first": first, "last": last}
    return reader.arrow(_CURVES.format(column=statistic.column), asked).to_pandas()


def peers_band(
    reader: TraceReader,
    statistic: Statistic,
    layer: int,
    scope: str,
    rank: int,
    first: int,
    last: int,
) -> pd.DataFrame:
    """What the other ranks have: columns step, low, high, middle (the median)."""
    asked = {"layer": layer, "scope": scope, "rank": rank, "first": first, "last": last}
    return reader.arrow(_BAND.format(column=statistic.column), asked).to_pandas()


def carried(reader: TraceReader, layer: int, rank: int, step: int) -> dict[str, bool]:
    """Whether what the step before left is what this step found, by kind of tensor.

    Empty where that was not recorded, or the guard began anew at this step.
    """
    asked = {"layer": layer, "rank": rank, "step": step}
    if reader.rows(_REFRESHED, {"rank": rank, "step": step})[0][0]:
        return {}
    return {kind: differ == 0 for kind, _, differ in reader.rows(_CARRIED, asked)}


def votes(reader: TraceReader, layer: int, step: int) -> dict[tuple[str, int], list[list[int]]]:
    """Which ranks have the same digest: groups of ranks, the largest first, by (kind, step).

    Of what this step left and of what the step before it left.
    """
    found = reader.rows(_VOTES, {"layer": layer, "step": step})
    return {(kind, at): groups for kind, at, groups in found}


def alerts_at(reader: TraceReader, layer: int, step: int, limit: int = 50) -> list[dict[str, Any]]:
    """The alerts of a layer, and of the whole step, with their detail read."""
    rows = reader.rows(_ALERTS.format(limit=limit), {"layer": layer, "step": step})
    names = ("rank", "detector", "score", "threshold", "severity")
    return [{**dict(zip(names, row[:5], strict=True)), "detail": detail_of(row[5])} for row in rows]


def devices(reader: TraceReader, step: int) -> dict[int, str]:
    """The device that each rank told of last, by rank."""
    found = {
        rank: detail_of(text).get("device") for rank, text in reader.rows(_DEVICES, {"step": step})
    }
    return {rank: str(device) for rank, device in found.items() if device}


def alert_cells(
    reader: TraceReader, first: int, last: int, width: int, rank: int | None = None
) -> pa.Table:
    """Where alerts name a layer: columns layer, bin, severity, count, detectors, step."""
    asked = {"first": first, "last": last, "width": width, "rank": rank}
    return reader.arrow(_ALERT_CELLS.format(limit=_NEAR), asked)
