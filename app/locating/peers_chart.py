"""A layer's curve of one rank among its peers, and ranked bars: Altair, without any reading."""

from __future__ import annotations

import math
from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from ..chart_dress import dressed
from ..palette import Palette
from ..wording import number_text, span_text

_LEFT: Final = 80
_IN_WORDS: Final = 5  # bars that a description names
BAR_END: Final = 50.0  # |d| at which a bar is cut: what is infinite ends there, too


def peers(
    own: pd.DataFrame,
    others: pd.DataFrame,
    band: pd.DataFrame,
    step: int,
    span: tuple[int, int],
    title: str,
    palette: Palette,
    *,
    log: bool,
) -> alt.LayerChart:
    """One rank's curve, its peers' and the step, on a shared axis.

    Args:
        own: columns step, value, of the rank.
        others: columns step, rank, value, a thin line each; may be empty.
        band: columns step, low, high, middle, of many peers together; may be empty.
        step: it is marked.
        span: first and last step of the axis.
        title: of the vertical axis.
        palette: its colours.
        log: for a logarithmic axis; what is not positive is left out.
    """
    scale = alt.Scale(type="log", padding=6) if log else alt.Scale(zero=False, padding=6)
    x = alt.X(
        "step:Q",
        scale=alt.Scale(domain=list(span), nice=False, padding=6),
        axis=alt.Axis(title="step", format=",d", tickMinStep=1),
    )
    y = alt.Y("value:Q", title=title, scale=scale)
    tip = [alt.Tooltip("step:Q", format=",d"), alt.Tooltip("value:Q", format=".6g")]
    layers: list[alt.Chart] = [
        alt.Chart(pd.DataFrame({"step": [step]}))
        .mark_rule(color=palette.chosen, strokeWidth=4, opacity=0.45)
        .encode(x=x)
    ]
    names = ["this rank"] if others.empty and band.empty else ["this rank", "peers"]
    colours = [palette.line, palette.untested][: len(names)]
    who = alt.Scale(domain=names, range=colours)
    colour = alt.Color("curve:N", scale=who, legend=alt.Legend(orient="top", title=None))
    if not band.empty:
        drawable = _drawable(band.rename(columns={"middle": "value"}), log=log)
        layers.append(
            alt.Chart(drawable)
            .mark_area(color=palette.untested, opacity=0.25)
            .encode(x=x, y=alt.Y("low:Q", scale=scale, title=title), y2="high:Q")
        )
        layers.append(
            _line(drawable.assign(curve="peers"), 1.5).encode(x=x, y=y, color=colour, tooltip=tip)
        )
    if not others.empty:
        lines = _drawable(others, log=log).assign(curve="peers")
        layers.append(
            _line(lines, 1.0).encode(
                x=x, y=y, color=colour, detail="rank:N", tooltip=[alt.Tooltip("rank:N"), *tip]
            )
        )
    mine = _drawable(own, log=log).assign(curve="this rank")
    layers.append(
        alt.Chart(mine)
        .mark_line(strokeWidth=2.2, point=alt.OverlayMarkDef(size=22, shape="diamond"))
        .encode(x=x, y=y, color=colour, tooltip=tip)
    )
    here = own.loc[own["step"] == step, "value"]
    told = "no value" if here.empty else number_text(float(here.iloc[0]))
    beside = " among its peers" if len(names) > 1 else ""
    text = f"{title} of this rank{beside} over steps {span_text(*span)}; {told} at step {step:,}."
    return dressed(alt.layer(*layers), palette, text, left=_LEFT, height=320)


def _line(frame: pd.DataFrame, width: float) -> alt.Chart:
    return alt.Chart(frame).mark_line(strokeWidth=width, opacity=0.75)


def _drawable(frame: pd.DataFrame, *, log: bool) -> pd.DataFrame:
    values = frame["value"].to_numpy(np.float64)
    keep = np.isfinite(values) & ((values > 0) if log else True)
    return frame[keep]


def bars(
    names: list[str], values: list[float], texts: list[str], palette: Palette
) -> alt.LayerChart:
    """Ranked bars, the text of each beside it.

    Args:
        names: of the bars, from top to bottom; equal ones are told apart by their number.
        values: d of each; beyond `BAR_END` a bar is cut, and its text says how far it goes.
        texts: what stands beside each.
        palette: its colours.
    """
    frame = pd.DataFrame(
        {
            "place": range(len(names)),
            "name": names,
            "size": [min(abs(value), BAR_END) for value in values],
            "sort": ["higher" if value > 0 else "lower" for value in values],
            "text": texts,
        }
    )
    ends = palette.diverging
    sorts = {"higher": ends[-2], "lower": ends[1]}
    present = [sort for sort in sorts if sort in set(frame["sort"])]
    colour = alt.Color(
        "sort:N",
        scale=alt.Scale(domain=present, range=[sorts[sort] for sort in present]),
        legend=alt.Legend(orient="top", title=None),
    )
    y = alt.Y("place:O", axis=None, scale=alt.Scale(paddingInner=0.25))
    top = max([1.0, *(x for x in frame["size"] if math.isfinite(x))])
    x = alt.X("size:Q", title="|d|", scale=alt.Scale(domain=[0, 3.2 * top]), axis=None)
    chart = alt.Chart(frame)
    tip = [alt.Tooltip("name:N"), alt.Tooltip("text:N", title="d")]
    drawn = alt.layer(
        chart.mark_bar(cornerRadiusEnd=2).encode(x=x, y=y, color=colour, tooltip=tip),
        chart.mark_text(align="left", dx=6, color=palette.ink, limit=420).encode(
            x=x, y=y, text=alt.Text("text:N"), tooltip=tip
        ),
    )
    first = "; ".join(texts[:_IN_WORDS])
    described = f"Ranked bars of what differs most from the baseline. {first or 'None'}."
    return dressed(drawn, palette, described, left=0, height=22 * len(names) + 70)
