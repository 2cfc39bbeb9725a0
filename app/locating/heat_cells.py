"""The cells of the heatmap layers × steps with what their tooltips say, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ..wording import count, number_text
from .layer_rows import LayerRow

CLAMP: Final = 8.0  # |z| from which a colour says no more


@dataclass(frozen=True)
class Drawn:
    """What the chart is made of.

    Attributes:
        cells: a row per cell, see `drawn`.
        rows: of layers, from top to bottom.
        width: steps of a cell.
        first, last: steps of the window, both included.
        alerts: cells with alerts: row, bin, sort, text.
    """

    cells: pd.DataFrame
    rows: Sequence[LayerRow]
    width: int
    first: int
    last: int
    alerts: pd.DataFrame


def drawn(
    found: pd.DataFrame,
    alerts: pd.DataFrame,
    rows: Sequence[LayerRow],
    names: Mapping[int, str],
    width: int,
    first: int,
    last: int,
) -> Drawn:
    """Cells and alerts with what their tooltips say.

    Args:
        found: as `queries_locate.cells` gives them.
        alerts: columns row, bin, severity, count, detectors, step.
        rows: of the window.
        names: of the layers by their numbers.
        width: steps of a bin.
        first, last: the steps of the window.
    """
    z = found["z"].to_numpy(np.float64)
    cells = found.assign(
        label=[rows[row].label for row in found["row"]],
        start=found["bin"] * width - 0.5,
        end=(found["bin"] + 1) * width - 0.5,
        colour=np.clip(z, -CLAMP, CLAMP),
        z_text=[
            _z_text(value, judged=not none)
            for value, none in zip(z, found["unjudged"], strict=True)
        ],
        who=[
            f"{names.get(layer, layer)}, {rank_text(rank, scope)}"
            for layer, rank, scope in zip(
                found["layer"], found["rank"], found["scope"], strict=True
            )
        ],
        broken=[count(int(n), "value") + " not finite" if n else "" for n in found["bad"]],
    )
    cells["text"] = [
        f"{label}, {_steps_text(place, width)}: z {z}{', ' + broken if broken else ''}"
        for label, place, z, broken in zip(
            cells["label"], cells["bin"], cells["z_text"], cells["broken"], strict=True
        )
    ]
    marks = alerts.assign(
        label=[rows[row].label for row in alerts["row"]],
        middle=(alerts["bin"] + 0.5) * width - 0.5,
        sort=["proven" if x == "proven" else "statistical" for x in alerts["severity"]],
        text=[
            f"{count(int(n), 'alert')}: {what}, the first at step {step:,}"
            for n, what, step in zip(
                alerts["count"], alerts["detectors"], alerts["step"], strict=True
            )
        ],
    )
    return Drawn(cells, rows, width, first, last, marks)


def rank_text(rank: int, scope: str) -> str:
    """Whose value it is: what was reduced is every rank's."""
    return "reduced over ranks" if scope == "reduced" else f"rank {rank}"


def _steps_text(place: int, width: int) -> str:
    if width == 1:
        return f"step {place:,}"
    return f"steps {place * width:,} to {(place + 1) * width - 1:,}"


def _z_text(z: float, *, judged: bool) -> str:
    if not judged or math.isnan(z):
        return "none"
    if math.isinf(z):
        return "−∞ (zero)" if z < 0 else "∞"
    return f"{'+' if z > 0 else ''}{number_text(round(z, 2))}"
