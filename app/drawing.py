"""Charts on their way to the browser.

Altair checks each part of a chart against its schema when it is made, and all of it when it is
written: several times what the rest of a page takes. What the pages draw is checked by the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import altair as alt
import streamlit as st
from altair.utils import schemapi

schemapi.disable_debug_mode()  # parts are not checked when they are made


class _Unchecked:
    """A chart that is written without being checked."""

    def __init__(self, chart: alt.LayerChart) -> None:
        self._chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart in Vega-Lite."""
        written: dict[str, Any] = self._chart.to_dict(validate=False)
        return written


def draw(
    chart: alt.LayerChart,
    key: str,
    on_select: Literal["rerun", "ignore"] | Callable[[], None] = "ignore",
) -> None:
    """Draw a chart as wide as its place.

    Args:
        chart: to be drawn.
        key: of the element, and of what is selected in it in the session's state.
        on_select: as `st.altair_chart` takes it.
    """
    unchecked = cast(alt.LayerChart, _Unchecked(chart))
    st.altair_chart(unchecked, width="stretch", key=key, on_select=on_select)
