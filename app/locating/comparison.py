"""Selection against baseline, on the page Locate: what differs most from the steps before."""

from __future__ import annotations

import math
from dataclasses import astuple

import pandas as pd
import streamlit as st

from sdc_guard.store.trace_reader import TraceReader

from .. import address, answers, queries
from ..drawing import draw
from ..palette import palette_of
from ..wording import count, plain, span_text
from . import peers_chart, queries_compare
from .heat_cells import rank_text

_STEPS = 10  # of an incident that are selected at first
_MOST = 500  # steps of a selection

_WAYS = {"Layers": "layer", "Ranks": "rank", "Statistics": "statistic"}


def default_span(reader: TraceReader, step: int | None, last: int) -> tuple[int, int] | None:
    """The selected step, or the first steps of the first incident; None without either."""
    if step is not None:
        return step, step
    first = answers.leading(queries.incidents(reader))
    if first is None:
        return None
    return first.opened, min(first.closed or last, first.opened + _STEPS - 1, last)


def comparison(
    reader: TraceReader, names: dict[int, str], known: tuple[int, int], step: int | None
) -> None:
    """The section of the page."""
    st.subheader("Selection against baseline", anchor=False)
    span = _chosen(default_span(reader, step, known[1]), known)
    if span is None:
        st.write("No incident was opened. Give the steps that looked odd to compare them.")
        return
    chosen = queries_compare.selection(span[0], min(span[1], span[0] + _MOST - 1), known[0])
    if chosen.baseline is None:
        st.info(f"There is no step before step {chosen.first:,} to compare with.")
        return
    version = st.session_state.get("shown")
    frame = _differences(str(reader.run), reader.attempt, version, astuple(chosen), reader)
    if frame.empty:
        st.info(_why_nothing(chosen))
        return
    way = _WAYS[
        st.segmented_control("Ranked", list(_WAYS), default="Layers", key="ways") or "Layers"
    ]
    if way == "rank" and frame["rank"].nunique() < 2:
        st.info("Only one rank recorded these steps: there is no other to compare it with.")
        return
    _bars(queries_compare.ranked(frame, way), names, way)
    st.caption(_caption(chosen, span))


@st.cache_data(max_entries=16, show_spinner=False)
def _differences(
    run: str,
    attempt: int | None,
    version: int | None,
    chosen: tuple[int, int, int],
    _reader: TraceReader,
) -> pd.DataFrame:
    """Kept by the run, the attempt that it is read as of, its version and the steps."""
    return queries_compare.differences(_reader, queries_compare.Selection(*chosen))


def _chosen(default: tuple[int, int] | None, known: tuple[int, int]) -> tuple[int, int] | None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        texts = ("", "") if default is None else (str(default[0]), str(default[1]))
        low = address.number("From step", "compare_from", placeholder=texts[0])
        high = address.number("To step", "compare_to", placeholder=texts[1])
    if low is None and high is None:
        return default
    first = low if low is not None else default[0] if default is not None else high or 0
    last = high if high is not None else first if default is None else default[1]
    first = max(known[0], min(first, known[1]))
    return first, max(first, min(last, known[1]))


def _bars(rows: pd.DataFrame, names: dict[int, str], way: str) -> None:
    title = {
        "layer": [names.get(x, str(x)) for x in rows["layer"]],
        "rank": [f"rank {x}" for x in rows["rank"]],
        "statistic": list(rows["statistic"]),
    }[way]
    texts = [
        f"{_named(row, names, way)}: d {d_text(row.d)}" for row in rows.itertuples(index=False)
    ]
    chart = peers_chart.bars(
        title, [float(d) for d in rows["d"]], texts, palette_of(st.context.theme.type)
    )
    draw(chart, "bars")


def _named(row, names: dict[int, str], way: str) -> str:
    layer = names.get(row.layer, str(row.layer))
    who = rank_text(row.rank, row.scope)
    if way == "layer":
        return f"{layer} ({row.statistic}, {who})"
    if way == "rank":
        return f"rank {row.rank} ({row.statistic} of {layer})"
    return f"{row.statistic} ({layer}, {who})"


def d_text(d: float) -> str:
    """d in words where it is no number."""
    if math.isinf(d):
        return "∞, not finite" if d > 0 else "−∞, turned to zero"
    return f"{d:+.1f}".replace("-", "−") if abs(d) >= 0.05 else "0.0"


def _caption(chosen: queries_compare.Selection, asked: tuple[int, int]) -> str:
    low, high = chosen.baseline or (chosen.first, chosen.first)
    cut = "" if chosen.last == asked[1] else f" (the first {_MOST} of the selected)"
    text = (
        f"Selected: {span_text(chosen.first, chosen.last)}{cut}; baseline: {span_text(low, high)}, "
        f"{count(high - low + 1, 'step')}. "
        "d = (median of the selection − median of the baseline) / "
        "(1.4826 · MAD of the baseline + s₀), of the statistic's logarithm or log-odds, for each "
        "layer, rank and scope; s₀ is 0.05, and 0.25 of counts. A bar is the greatest |d|; "
        f"at most {queries_compare.MAX_BARS}, cut at {peers_chart.BAR_END:.0f}. "
        "It ranks what to look at and proves nothing."
    )
    return plain(text)


def _why_nothing(chosen: queries_compare.Selection) -> str:
    low, high = chosen.baseline or (0, 0)
    if high - low + 1 < queries_compare.FEWEST:
        return (
            f"The baseline has {count(high - low + 1, 'step')}; "
            f"{queries_compare.FEWEST} are needed to compare with."
        )
    return "No layer has values both in the selected steps and before."
