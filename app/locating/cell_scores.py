"""How unusual one layer's values at one step are, and which of them to look at."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .queries_locate import FEWEST
from .robust import MAD_TO_SIGMA, across
from .scans import Scan
from .statistics_sql import Statistic


def own_z(
    values: pd.DataFrame, whole: Scan | None, statistic: Statistic, step: int
) -> list[float | None]:
    """z of each row among its own values in the stretch: the heatmap's. None without a scan."""
    if whole is None:
        return [None] * len(values)
    usual = whole.usual
    places = pc.is_in(usual["place"], value_set=pa.array(values["place"].to_list(), pa.int64()))
    stretch = pc.equal(usual["stretch"], whole.by.of(step))
    known = {row["place"]: row for row in usual.filter(pc.and_(places, stretch)).to_pylist()}
    return [
        _z(x, zero == 0, known.get(place), statistic)
        for x, zero, place in zip(
            values["x"], values[statistic.column], values["place"], strict=True
        )
    ]


def _z(
    x: float | None, zero: bool, usual: dict[str, Any] | None, statistic: Statistic
) -> float | None:
    if usual is None or usual["count"] < FEWEST:
        return None
    if x is None or math.isnan(x):
        lost = zero and not statistic.share and usual["zeros"] < usual["count"]
        return -math.inf if lost else None
    return float((x - usual["middle"]) / (MAD_TO_SIGMA * usual["spread"] + statistic.floor))


def looked_at(values: pd.DataFrame, rank: int | None) -> tuple[str, int]:
    """Scope and rank to look at: of this rank, or else where |z| is greatest; own values first."""
    rows = values if rank is None else values[values["rank"] == rank]
    rows = values if rows.empty else rows
    own = rows[rows["scope"] != "reduced"]
    rows = rows if own.empty else own
    sizes = [-1.0 if z is None or math.isnan(z) else abs(z) for z in rows["z"]]
    broken = [
        1e300 if n and n > 0 else size for n, size in zip(rows["nonfinite"], sizes, strict=True)
    ]
    row = rows.iloc[max(range(len(broken)), key=broken.__getitem__)]
    return str(row["scope"]), int(row["rank"])


def across_ranks(values: pd.DataFrame, floor: float) -> list[float | None]:
    """z of each row among all ranks' values of its scope."""
    found = pd.Series([None] * len(values), index=values.index, dtype=object)
    for _, rows in values.groupby("scope"):
        xs = [None if x is None or math.isnan(x) else float(x) for x in rows["x"]]
        found.loc[rows.index] = across(xs, floor)
    return list(found)
