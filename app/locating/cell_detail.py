"""The detail of one cell of the page Locate: one layer at one step, on every rank."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st

from sdc_guard.store.machines import Machine, machines
from sdc_guard.store.trace_reader import TraceReader

from .. import navigation
from ..drawing import draw
from ..palette import palette_of
from ..wording import count, number_text, place_text, plain, score_text
from . import peers_chart, queries_cell
from .cell_digests import digests
from .cell_scores import across_ranks, looked_at, own_z
from .scans import Scan
from .statistics_sql import Statistic

_AROUND = 48  # steps on either side of the chosen one
_RANKS_SHOWN = 64


def detail(
    reader: TraceReader,
    statistic: Statistic,
    whole: Scan | None,
    layer: tuple[int, str],
    step: int,
    rank: int | None,
) -> None:
    """Everything known of a layer at a step.

    Args:
        reader: of the run.
        statistic: what is compared.
        whole: the scan of it, None while it is being made: then no value has a z of its own steps.
        layer: number and name.
        step: which.
        rank: that is looked at; None for the one that is farthest off.
    """
    number, name = layer
    st.subheader(f"{plain(name)} at step {step:,}", anchor=False)
    values = queries_cell.values_at(reader, statistic, number, step)
    if values.empty:
        st.info("No statistics of this layer are recorded at this step.")
    else:
        values["z"] = own_z(values, whole, statistic, step)
        scope, chosen = looked_at(values, rank)
        values = values.assign(across=across_ranks(values, statistic.floor))
        _curves(reader, statistic, number, step, scope, chosen)
        _ranks(reader, values, statistic, step)
        rank = chosen
    navigation.onward("locate", step, layer=name, rank=rank)
    _alerts(queries_cell.alerts_at(reader, number, step))
    digests(reader, number, 0 if rank is None else rank, step)


def _curves(
    reader: TraceReader, statistic: Statistic, layer: int, step: int, scope: str, rank: int
) -> None:
    first, last = step - _AROUND, step + _AROUND
    lines = queries_cell.curves(reader, statistic, layer, scope, first, last)
    others = lines[lines["rank"] != rank]
    ranks = others["rank"].nunique()
    band = pd.DataFrame()
    if ranks > queries_cell.PEERS:
        band = queries_cell.peers_band(reader, statistic, layer, scope, rank, first, last)
        others = others.iloc[:0]
    seen = lines["step"]
    span = (int(min(seen.min(), step)), int(max(seen.max(), step))) if len(seen) else (first, last)
    chart = peers_chart.peers(
        lines[lines["rank"] == rank],
        others,
        band,
        step,
        span,
        statistic.name,
        palette_of(st.context.theme.type),
        log=not statistic.share,
    )
    draw(chart, "peers")
    said = [f"{statistic.name} of rank {rank}, {scope or 'no scope told'}, ± {_AROUND} steps."]
    if ranks == 0:
        said.append("Only one rank recorded this layer here: there is no peer to compare it with.")
    elif scope == "reduced":
        said.append("It is after the reduction, where every rank has the same.")
    elif not band.empty:
        said.append(f"The line is the median of {ranks} peers, the area their range.")
    broken = int((~lines["value"].apply(math.isfinite)).sum())
    if broken:
        said.append(f"{count(broken, 'value')} not finite, and not drawn.")
    if not statistic.share and (lines["value"] == 0).any():
        said.append("Zeros have no place on a logarithmic axis.")
    st.caption(plain(" ".join(said)))


def _ranks(reader: TraceReader, values: pd.DataFrame, statistic: Statistic, step: int) -> None:
    shown = values.head(_RANKS_SHOWN)
    where = machines(reader, step)
    told = queries_cell.devices(reader, step)
    table = {
        "rank": [str(x) for x in shown["rank"]],
        "scope": [plain(x) for x in shown["scope"]],
        "norm": _numbers(shown["norm"], shown["nonfinite"]),
        "max |g|": _numbers(shown["max_abs"], shown["nonfinite"]),
        "mean |g|": _numbers(shown["mean_abs"], shown["nonfinite"]),
        "not finite": _counts(shown["nonfinite"]),
        "zeros": _counts(shown["zeros"]),
        f"z of {statistic.name}, own steps": [_z_text(z) for z in shown["z"]],
        f"z of {statistic.name}, over ranks": [_z_text(z) for z in shown["across"]],
        "host": [plain(_host(where.get(rank))) for rank in shown["rank"]],
        "device": [plain(_device(where.get(rank), told.get(rank))) for rank in shown["rank"]],
    }
    if all(z is None for z in shown["across"]):
        del table[f"z of {statistic.name}, over ranks"]
    st.table(table, hide_index=True)
    st.caption(plain(" ".join(_about_ranks(values, shown, where))))


def _host(machine: Machine | None) -> str:
    return "not recorded" if machine is None or machine.host is None else machine.host


def _device(machine: Machine | None, told: str | None) -> str:
    """By its serial where the rank recorded that; else what it was called in its answers."""
    return (None if machine is None else machine.device) or told or "not recorded"


def _about_ranks(values: pd.DataFrame, shown: pd.DataFrame, where: dict[int, Machine]) -> list[str]:
    said = []
    attempt = int(values["attempt"].iloc[0])
    if where:
        said.append(f"Host and device as each rank recorded them when attempt {attempt} began.")
    if any(int(rank) not in where for rank in shown["rank"]):
        said.append("Not recorded: the run was recorded before ranks told their host.")
    ranks = values["rank"].nunique()
    if ranks == 2:
        said.append("Of two ranks that differ nobody knows which is wrong: no z over ranks.")
    if len(values) > len(shown):
        said.append(f"The first {len(shown)} of {count(len(values), 'row')}.")
    return said


def _alerts(alerts: list[dict[str, Any]]) -> None:
    st.markdown("**Alerts of this layer at this step**")
    if not alerts:
        st.write("None: no detector was over its threshold, and no exact comparison failed.")
        return
    table = {
        "rank": [str(a["rank"]) for a in alerts],
        "detector": [plain(a["detector"]) for a in alerts],
        "evidence": ["✖ proven" if a["severity"] == "proven" else "▲ statistics" for a in alerts],
        "place": [plain(place_text(a["detail"])) for a in alerts],
        "score": [score_text(a["severity"], a["score"], a["threshold"]) for a in alerts],
        "text": [plain(a["detail"].get("text", "")) for a in alerts],
    }
    st.table({name: column for name, column in table.items() if any(column)}, hide_index=True)


def _numbers(column: pd.Series, broken: pd.Series) -> list[str]:
    """Of values that are not finite NaN is what was measured; else it stands for none."""
    return [
        "–" if pd.isna(x) and not (n > 0) else plain(number_text(math.nan if pd.isna(x) else x))
        for x, n in zip(column, broken, strict=True)
    ]


def _counts(column: pd.Series) -> list[str]:
    return ["–" if pd.isna(x) else f"{int(x):,}" for x in column]


def _z_text(z: float | None) -> str:
    if z is None or math.isnan(z):
        return "–"
    return "−∞ (zero)" if math.isinf(z) else plain(f"{z:+.2f}".replace("-", "−"))
