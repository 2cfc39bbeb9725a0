"""The heatmap layers × steps: from cells to an Altair chart, without any reading or page."""

from __future__ import annotations

from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from ..chart_dress import dressed
from ..palette import Palette
from ..wording import count
from .heat_cells import CLAMP, SMALL, Drawn

MAX_CELLS: Final = 16_000  # as many as a browser draws in about a second
SELECTION: Final = "cell"
_LEAST_LEFT, _MOST_LEFT = 80, 240  # pixels for the labels of the rows
_BROAD: Final = 0.62  # of a letter, in parts of its height
_AROUND: Final = 165  # pixels of a chart's height that the legend and the axis take
_CROSS: Final = "✕"
# columns that the chart uses: tens of thousands of rows go to the browser
_DRAWN: Final = ["row", "bin", "label", "start", "end", "colour", "tip"]
_ALL_LABELLED: Final = 60  # rows; of more every second has its name beside it


def heatmap(shown: Drawn, palette: Palette, chosen: tuple[int, int] | None) -> alt.LayerChart:
    """The chart; a click selects a cell by its `row` and `bin`.

    Args:
        shown: at most `MAX_CELLS` cells.
        palette: its colours.
        chosen: row and bin of the selected cell.
    """
    cells = shown.cells
    small = len(cells) <= SMALL
    drawn = cells[[*_DRAWN, "text"] if small else _DRAWN]
    judged, unjudged = drawn[~cells["unjudged"]], drawn[cells["unjudged"]]
    layers = [_rects(judged, shown, palette)]
    if not unjudged.empty:
        layers.append(_plain_rects(unjudged, shown, palette))
    broken = drawn[cells["bad"] > 0]
    if not broken.empty:
        layers.append(_crosses(broken, shown, palette))
    layers += _alerts(shown, palette)
    if chosen is not None:
        layers.append(_outline(shown, palette, chosen))
    rows = max(len(shown.rows), 1)
    pitch = max(11.0 if rows <= _ALL_LABELLED else 6.5, min(20.0, 560 / rows))
    size, left = _label_size(shown)
    return dressed(
        alt.layer(*layers),
        palette,
        in_words(shown),
        left=left,
        height=pitch * rows + _AROUND,
        renderer="svg" if small else "canvas",
        label_size=size,
    )


def _label_size(shown: Drawn) -> tuple[int, int]:
    """Height of the rows' labels, and the room on their left, both in pixels."""
    longest = max((len(row.label) for row in shown.rows), default=0)
    size = 8 if len(shown.rows) > _ALL_LABELLED else 12 if longest <= 24 else 10
    return size, int(min(max(_LEAST_LEFT, _BROAD * size * longest + 14), _MOST_LEFT))


def in_words(shown: Drawn) -> str:
    """The chart in a sentence, for who does not see it."""
    what = f"{count(len(shown.rows), 'row')} of layers over steps {shown.first:,} to {shown.last:,}"
    parts = [f"Heatmap of how unusual layers are: {what}"]
    judged = shown.cells[~shown.cells["unjudged"]]
    if not judged.empty:
        cell = judged.iloc[int(judged["z"].abs().fillna(-1).to_numpy().argmax())]
        parts.append(f"farthest off: {cell['tip']}")
    if not shown.alerts.empty:
        parts.append(f"{count(len(shown.alerts), 'cell')} with alerts")
    return "; ".join(parts) + "."


def _x(shown: Drawn, field: str) -> alt.X:
    domain = [
        shown.first // shown.width * shown.width - 0.5,
        (shown.last // shown.width + 1) * shown.width - 0.5,
    ]
    axis = alt.Axis(title="step", format=",d", tickMinStep=1, grid=False)
    return alt.X(f"{field}:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)


def _y(shown: Drawn) -> alt.Y:
    labels = [row.label for row in shown.rows]
    axis = alt.Axis(
        title=None,
        grid=False,
        ticks=False,
        labelBound=False,
        labelFlush=False,
        labelOverlap="parity" if len(labels) > _ALL_LABELLED else False,
    )
    return alt.Y("label:N", sort=labels, scale=alt.Scale(domain=labels, padding=0), axis=axis)


def _tooltip() -> alt.Tooltip:
    # one text: the browser makes an object of several for each of tens of thousands of cells
    return alt.Tooltip("tip:N")


def _described(cells: pd.DataFrame) -> dict[str, alt.Description]:
    """The label of each cell, which only a drawing as SVG has a place for."""
    return {"description": alt.Description("text:N")} if "text" in cells else {}


def _rects(cells: pd.DataFrame, shown: Drawn, palette: Palette) -> alt.Chart:
    stops = np.linspace(-CLAMP, CLAMP, len(palette.diverging)).tolist()
    scale = alt.Scale(domain=stops, range=list(palette.diverging), clamp=True, interpolate="rgb")
    legend = alt.Legend(
        title="robust z",
        orient="top",
        direction="horizontal",
        gradientLength=220,
        values=[-8, -4, 0, 4, 8],
    )
    click = alt.selection_point(
        name=SELECTION, fields=["row", "bin"], on="click", toggle=False, clear=False
    )
    return (
        alt.Chart(cells)
        .mark_rect(clip=True, cursor="pointer")
        .encode(
            x=_x(shown, "start"),
            x2=alt.X2("end:Q"),
            y=_y(shown),
            color=alt.Color("colour:Q", scale=scale, legend=legend),
            tooltip=_tooltip(),
            **_described(cells),
        )
        .add_params(click)
    )


def _plain_rects(cells: pd.DataFrame, shown: Drawn, palette: Palette) -> alt.Chart:
    return (
        alt.Chart(cells)
        .mark_rect(clip=True, cursor="pointer", color=palette.untested, opacity=0.45)
        .encode(
            x=_x(shown, "start"),
            x2=alt.X2("end:Q"),
            y=_y(shown),
            tooltip=_tooltip(),
            **_described(cells),
        )
    )


def _crosses(cells: pd.DataFrame, shown: Drawn, palette: Palette) -> alt.Chart:
    middle = cells.assign(middle=(cells["start"] + cells["end"]) / 2)
    size = 13 if len(shown.rows) <= 40 else 9
    return (
        alt.Chart(middle)
        .mark_text(
            text=_CROSS, color=palette.ink, fontSize=size, fontWeight="bold", cursor="pointer"
        )
        .encode(x=_x(shown, "middle"), y=_y(shown), tooltip=_tooltip())
    )


def _alerts(shown: Drawn, palette: Palette) -> list[alt.Chart]:
    """A mark for each sort: they have no scale of their own, and the page says what they are."""
    layers = []
    for sort, shape, colour in (
        ("statistical", "triangle-down", palette.suspect),
        ("proven", "diamond", palette.corrupt),
    ):
        rows = shown.alerts[shown.alerts["sort"] == sort]
        if rows.empty:
            continue
        mark = alt.Chart(rows).mark_point(
            shape=shape,
            filled=True,
            size=130,
            opacity=1,
            color=colour,
            stroke=palette.card,
            strokeWidth=1.2,
            cursor="pointer",
        )
        tip = [alt.Tooltip("text:N", title="alerts"), alt.Tooltip("label:N", title="layers")]
        layers.append(mark.encode(x=_x(shown, "middle"), y=_y(shown), tooltip=tip))
    return layers


def _outline(shown: Drawn, palette: Palette, chosen: tuple[int, int]) -> alt.Chart:
    row, place = chosen
    # around a cell that is too thin for an outline of its own
    room = 0.002 * (shown.last - shown.first + 1)
    frame = pd.DataFrame(
        {
            "label": [shown.rows[row].label],
            "start": [place * shown.width - 0.5 - room],
            "end": [(place + 1) * shown.width - 0.5 + room],
            "row": [row],
            "bin": [place],
        }
    )
    return (
        alt.Chart(frame)
        .mark_rect(filled=False, stroke=palette.chosen, strokeWidth=2, clip=True)
        .encode(x=_x(shown, "start"), x2=alt.X2("end:Q"), y=_y(shown))
    )
