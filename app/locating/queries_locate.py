"""What the page Locate asks of a run's layers: robust z of a statistic, binned for a heatmap.

    z = (x − m) / (1.4826 · MAD + s₀)

with x the statistic's logarithm, and m and MAD the median and the median distance from it of the
same layer, rank and scope in the same stretch of steps (`step_bins`). Within a stretch z grows
with x, so that a bin's extreme z are those of its least and its greatest x: one pass over the rows
is enough, and no spike is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd
import pyarrow as pa

from sdc_guard.store.trace_reader import TraceReader, in_memory

from .robust import MAD_TO_SIGMA
from .statistics_sql import LAYER_OF, PLACE, RANK_OF, SCOPE_OF, SCOPES, Statistic
from .step_bins import Stretches

FEWEST: Final = 8  # values to judge by
# What was reduced is the same on every rank and names none: it stands for a cell only where it is
# clearly farther off than what each rank had before.
_LESS: Final = 0.9

_EXTENT = """
    SELECT min(step), max(step), count(*), (SELECT count(DISTINCT step) FROM layers
        WHERE layer = (SELECT min(layer) FROM layers)) FROM layers
"""
# Within a bin the logarithm is taken of the extremes alone.
_BINS = """
    SELECT place, bin, {low} AS low, low_step, {high} AS high, high_step, bad, bad_step,
        zeros, zero_step
    FROM (SELECT place, step // $width AS bin,
            min(x) AS least, arg_min(step, x) AS low_step,
            max(x) AS most, arg_max(step, x) AS high_step,
            count(*) FILTER (bad) AS bad, min(step) FILTER (bad) AS bad_step,
            count(*) FILTER (zero) AS zeros, min(step) FILTER (zero) AS zero_step
        FROM (SELECT {place} AS place, step, {ordered} AS x, {bad} AS bad, {zero} AS zero
            FROM {source} WHERE step BETWEEN $first AND $last {among})
        GROUP BY place, bin)
"""
# Multiples of the golden ratio's share of 2³²: spread evenly over any steps, whatever their period.
_SAMPLED: Final = "(step % 2147483648) * 2654435761 % 4294967296 < 4294967296 // $share"
_STRETCH: Final = "greatest($low, least($high, {step} // $length))"
_USUAL = """
    SELECT place, {stretch} AS stretch, median(x) AS middle, mad(x) AS spread,
        count(x) AS count, count(*) FILTER (zero) AS zeros
    FROM (SELECT {place} AS place, step, {compared} AS x, {zero} AS zero
        FROM {source} WHERE {sampled})
    GROUP BY place, stretch
"""
# Of a zero, whose logarithm is below all others, z is minus infinity; unless most are zeros.
_CELLS = """
    WITH scored AS (
        SELECT b.place, b.bin, bad, bad_step,
            CASE WHEN count >= $fewest THEN (low - middle) / (k * spread + $floor) END AS z_low,
            low, low_step,
            CASE WHEN count >= $fewest THEN (high - middle) / (k * spread + $floor) END AS z_high,
            high, high_step,
            b.zeros > 0 AND count >= $fewest AND u.zeros < count AS lost, zero_step
        FROM (SELECT *, {stretch} AS stretch, {k} AS k FROM bins) AS b
        LEFT JOIN usual AS u USING (place, stretch)
        WHERE $rank IS NULL OR {rank} = $rank
    ), far AS (
        SELECT place, bin, bad, bad_step, CASE WHEN lost THEN '-infinity'::DOUBLE
                WHEN z_low IS NULL THEN NULL WHEN abs(z_low) > abs(z_high) THEN z_low ELSE z_high
                END AS z,
            CASE WHEN lost THEN zero_step WHEN abs(z_low) > abs(z_high) THEN low_step
                ELSE coalesce(high_step, bad_step, zero_step) END AS step,
            CASE WHEN lost THEN NULL WHEN abs(z_low) > abs(z_high) THEN low ELSE high END AS x
        FROM scored
    ), placed AS (
        SELECT *, {layer} AS layer, {rank} AS rank, {scope} AS scope FROM far
    )
    SELECT row, bin, sum(bad)::BIGINT AS bad, min(bad_step) AS bad_step,
        max(abs(z)) IS NULL AS unjudged,
        unnest(arg_max({{'z': z, 'x': x, 'step': step, 'layer': layer, 'rank': rank,
            'scope': scope}}, coalesce(if(scope = {reduced}, {less} * abs(z), abs(z)), -1)))
    FROM placed JOIN rows USING (layer) GROUP BY row, bin ORDER BY row, bin
"""


@dataclass(frozen=True)
class Extent:
    """First and last step with rows of layers, how many rows, and how many steps of one layer."""

    first: int
    last: int
    rows: int
    recorded: int


def extent(reader: TraceReader) -> Extent | None:
    """What there is of layers' statistics, or None for nothing."""
    first, last, rows, recorded = reader.rows(_EXTENT)[0]
    return None if first is None else Extent(first, last, rows, recorded)


def bins(
    reader: TraceReader,
    statistic: Statistic,
    first: int,
    last: int,
    width: int,
    among: tuple[int, int] | None = None,
) -> pa.Table:
    """The extremes of each layer, rank and scope in bins of `width` steps.

    Args:
        reader: of the run.
        statistic: what.
        first, last: steps, both included.
        width: steps of a bin.
        among: the least and the greatest number of a layer; None for all.

    Returns:
        a row per place (`statistics_sql.PLACE`) and bin (step // width): low, high and their
        steps; bad and zeros, how many values are not finite or zero, and the first step of them.
    """
    query = _BINS.format(
        low=statistic.compared_of("least"),
        high=statistic.compared_of("most"),
        place=PLACE,
        ordered=statistic.ordered,
        bad=statistic.bad,
        zero=statistic.zero,
        source=statistic.source,
        among="" if among is None else f"AND layer BETWEEN {among[0]:d} AND {among[1]:d}",
    )
    return reader.arrow(query, {"first": first, "last": last, "width": width})


def usual(reader: TraceReader, statistic: Statistic, by: Stretches) -> pa.Table:
    """What is usual for each layer, rank and scope in each stretch.

    Returns:
        columns place, stretch, middle (median), spread (MAD), count (values), zeros.
    """
    query = _USUAL.format(
        place=PLACE,
        compared=statistic.compared,
        zero=statistic.zero,
        source=statistic.source,
        stretch=_STRETCH.format(step="step"),
        sampled=_SAMPLED,
    )
    asked = {"low": by.first, "high": by.last, "length": by.length, "share": by.share}
    return reader.arrow(query, asked)


def cells(
    found: pa.Table,
    usual_values: pa.Table,
    rows: pa.Table,
    statistic: Statistic,
    by: Stretches,
    width: int,
    rank: int | None = None,
) -> pd.DataFrame:
    """The cells of a heatmap: of each row of layers and bin the value with the greatest |z|.

    A reduced value's |z| counts for nine tenths: beside it there is what the ranks had each.

    Args:
        found: what `bins` gave.
        usual_values: what `usual` gave.
        rows: columns layer and row; layers without one are left out.
        statistic: the same for both.
        by: the stretches of `usual_values`.
        width: steps of a bin.
        rank: of this rank alone; None for all.

    Returns:
        columns row, bin, bad, bad_step, unjudged (no value has a z), z (float64, −∞ for a zero
        where most are none), x (what was compared), step, layer, rank, scope (its name).
    """
    query = _CELLS.format(
        stretch=_STRETCH.format(step=f"(bin * {width:d})"),
        k=MAD_TO_SIGMA,
        layer=LAYER_OF,
        rank=RANK_OF,
        scope=SCOPE_OF,
        reduced=SCOPES.index("reduced"),
        less=_LESS,
    )
    asked = {
        "low": by.first,
        "high": by.last,
        "length": by.length,
        "rank": rank,
        "fewest": FEWEST,
        "floor": statistic.floor,
    }
    connection = in_memory()
    try:
        for name, table in (("bins", found), ("usual", usual_values), ("rows", rows)):
            connection.register(name, table)
        frame = connection.sql(query, params=asked).to_arrow_table().to_pandas()
    finally:
        connection.close()
    frame["scope"] = [SCOPES[number] for number in frame["scope"]]
    return frame
