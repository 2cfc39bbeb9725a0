"""What all charts have in common: width, renderer, colours of axes and legends, a description."""

from __future__ import annotations

from typing import Final

import altair as alt

from .palette import Palette

# Fast with many points; SVG is the default of some embedders and far slower.
_CANVAS: Final = "canvas"
_FLUSH: Final = 40  # pixels from an end of the axis within which a label is kept inside


def dressed(
    chart: alt.LayerChart,
    palette: Palette,
    description: str,
    *,
    left: int,
    height: float | None = None,
    renderer: str = _CANVAS,
    label_size: int | None = None,
) -> alt.LayerChart:
    """The same chart as wide as its page, with axes, grid and legends in the page's colours.

    Args:
        chart: to be dressed.
        palette: of the page.
        description: what a screen reader says in place of the drawing.
        left: pixels for the labels of the vertical axis, so that charts above each other line up.
        height: in pixels; None keeps the chart's own.
        renderer: "canvas" or "svg".
        label_size: of the vertical axis, in pixels; None leaves it as usual.
    """
    # set in place: each of Altair's own methods would copy the chart with all its layers
    if height is not None:
        chart.height = height
    chart.width = "container"
    chart.usermeta = {"embedOptions": {"renderer": renderer}}
    chart.background = "transparent"
    chart.description = description
    chart.config = _config(palette, left, label_size)
    # a canvas has no place for a description of each point
    chart.config.aria = renderer != _CANVAS
    return chart


def _config(palette: Palette, left: int, label_size: int | None) -> alt.Config:
    size = {} if label_size is None else {"labelFontSize": label_size}
    return alt.Config(
        axis=alt.AxisConfig(
            labelColor=palette.soft,
            titleColor=palette.soft,
            titleFontWeight="normal",
            gridColor=palette.rule,
            domainColor=palette.rule,
            tickColor=palette.rule,
        ),
        # a label that reached beyond its axis would make one chart narrower than the next
        axisX=alt.AxisConfig(gridOpacity=0.5, tickCount=10, labelFlush=_FLUSH, labelFlushOffset=0),
        axisY=alt.AxisConfig(
            minExtent=left, maxExtent=left, labelLimit=left - 10, tickCount=5, **size
        ),
        legend=alt.LegendConfig(labelColor=palette.ink, titleColor=palette.soft),
        view=alt.ViewConfig(stroke=None),
    )
