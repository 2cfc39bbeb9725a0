"""Selected steps against the steps before: which layers, ranks and statistics differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from sdc_guard.store.trace_reader import TraceReader

from .robust import MAD_TO_SIGMA
from .statistics_sql import LAYER_OF, PLACE, RANK_OF, SCOPE_OF, SCOPES, STATISTICS

BASELINE: Final = 200  # steps
FEWEST: Final = 8  # values of a baseline
MAX_BARS: Final = 20

# One pass over both windows. A zero has no logarithm: where half of the selected values are zeros,
# and fewer of the baseline's, d is minus infinity; where one is not finite it is infinity.
_DIFFERENCES = """
    WITH found AS (
        SELECT {place} AS place, step >= $first AS chosen, {bad} AS bad, {zero} AS zero,
            {compared} AS x
        FROM {source} WHERE step BETWEEN $before AND $last
    ), base AS (
        SELECT place, median(x) AS middle, mad(x) AS spread, count(x) AS count,
            avg(zero::INTEGER) AS zeros
        FROM found WHERE NOT chosen GROUP BY place
    ), chosen AS (
        SELECT place, median(x) AS middle, avg(zero::INTEGER) AS zeros, bool_or(bad) AS bad
        FROM found WHERE chosen GROUP BY place
    )
    SELECT place, CASE WHEN chosen.bad THEN 'infinity'::DOUBLE
            WHEN chosen.zeros >= 0.5 AND base.zeros < 0.5 AND count >= $fewest
                THEN '-infinity'::DOUBLE
            WHEN count >= $fewest
                THEN (chosen.middle - base.middle) / ({k} * base.spread + {floor}) END AS d
    FROM chosen LEFT JOIN base USING (place)
"""
_ALL = """
    SELECT {layer} AS layer, {rank} AS rank, {scope} AS scope, statistic, d
    FROM ({parts}) WHERE d IS NOT NULL
"""


@dataclass(frozen=True)
class Selection:
    """The selected steps first to last, and the baseline before to first - 1."""

    first: int
    last: int
    before: int

    @property
    def baseline(self) -> tuple[int, int] | None:
        """First and last step of the baseline; None if there is no step before."""
        return (self.before, self.first - 1) if self.before < self.first else None


def selection(first: int, last: int, known_first: int) -> Selection:
    """The selected steps with the `BASELINE` steps before them, as far as there are any."""
    last = max(first, last)
    return Selection(first, last, max(known_first, first - BASELINE))


def differences(reader: TraceReader, chosen: Selection) -> pd.DataFrame:
    """How far the selected steps are from the baseline.

    d = (median of the selection − median of the baseline) / (1.4826 · MAD of the baseline + s₀)

    Returns:
        columns layer (its number), rank, scope (its name), statistic, d (float64): a row for each
        that can be compared.
    """
    parts = " UNION ALL ".join(
        f"SELECT '{name}' AS statistic, * FROM ("
        + _DIFFERENCES.format(
            place=PLACE,
            bad=statistic.bad if not statistic.share or name == "nonfinite" else "false",
            zero=statistic.zero,
            compared=statistic.compared,
            source=statistic.source,
            k=MAD_TO_SIGMA,
            floor=statistic.floor,
        )
        + ")"
        for name, statistic in STATISTICS.items()
    )
    query = _ALL.format(layer=LAYER_OF, rank=RANK_OF, scope=SCOPE_OF, parts=parts)
    asked = {
        "first": chosen.first,
        "last": chosen.last,
        "before": chosen.before,
        "fewest": FEWEST,
    }
    frame = reader.arrow(query, asked).to_pandas()
    frame["scope"] = [SCOPES[number] for number in frame["scope"]]
    return frame


def ranked(frame: pd.DataFrame, by: str, most: int = MAX_BARS) -> pd.DataFrame:
    """The greatest |d| of each layer, rank or statistic, the largest first.

    What was reduced is the same on every rank: for "rank" it is left out where each rank's own
    values are there.

    Args:
        frame: what `differences` gave.
        by: "layer", "rank" or "statistic".
        most: rows.

    Returns:
        the rows of `frame` that stand for each, at most `most`.
    """
    if by == "rank" and (frame["scope"] == "local").any():
        frame = frame[frame["scope"] == "local"]
    size = frame["d"].abs()
    ordered = frame.assign(size=size).sort_values(
        ["size", "layer", "rank", "statistic"], ascending=[False, True, True, True], kind="stable"
    )
    return ordered.drop_duplicates(by).head(most).drop(columns="size").reset_index(drop=True)
