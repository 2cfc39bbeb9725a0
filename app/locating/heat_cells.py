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
SMALL: Final = 400  # cells: few enough for SVG, whose cells have labels that a screen reader reads


@dataclass(frozen=True)
class Drawn:
    """What the chart is made of.

    Attributes:
        cells: a row per cell, see `described`.
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


def described(
    found: pd.DataFrame, rows: Sequence[LayerRow], names: Mapping[int, str], width: int
) -> pd.DataFrame:
    """Cells with their place and colour, and what their tooltips say.

    Args:
        found: as `queries_locate.cells` gives them.
        rows: of the window.
        names: of the layers by their numbers.
        width: steps of a bin.

    Returns:
        the columns of `found`, and label (of the row), start and end (steps), colour (z within
        the clamp), tip, and of few cells text, which a screen reader reads.
    """
    z = found["z"].to_numpy(np.float64)
    z_texts = _z_texts(z, found["unjudged"].to_numpy(bool))
    broken = [f"; {count(int(n), 'value')} not finite" if n else "" for n in found["bad"]]
    cells = found.assign(
        label=pd.Categorical.from_codes(found["row"].to_numpy(), [row.label for row in rows]),
        start=found["bin"] * width - 0.5,
        end=(found["bin"] + 1) * width - 0.5,
        colour=np.clip(z, -CLAMP, CLAMP),
        tip=[
            f"{who}, step {step}: z {value}{besides}"
            for who, step, value, besides in zip(
                _whose(found, names), _counts(found["step"]), z_texts, broken, strict=True
            )
        ],
    )
    if len(cells) <= SMALL:
        cells["text"] = [
            f"{label}, {_steps_text(place, width)}: z {value}{besides}"
            for label, place, value, besides in zip(
                cells["label"], cells["bin"], z_texts, broken, strict=True
            )
        ]
    return cells


def _whose(found: pd.DataFrame, names: Mapping[int, str]) -> list[str]:
    """Layer and rank of each cell: few are told apart, so that each is put into words once."""
    known: dict[tuple[int, int, str], str] = {}
    for key in zip(found["layer"], found["rank"], found["scope"], strict=True):
        if key not in known:
            layer, rank, scope = key
            known[key] = f"{names.get(layer, layer)}, {rank_text(rank, scope)}"
    return [known[key] for key in zip(found["layer"], found["rank"], found["scope"], strict=True)]


def _counts(numbers: pd.Series) -> list[str]:
    return [f"{number:,}" for number in numbers]


def _z_texts(z: np.ndarray, unjudged: np.ndarray) -> list[str]:
    """As `_z_text`; of tens of thousands few differ in two decimals."""
    # 0.0 makes zero of -0.0
    values, place = np.unique(np.where(unjudged, np.nan, np.round(z, 2) + 0.0), return_inverse=True)
    texts = [_z_text(float(value)) for value in values]
    return [texts[at] for at in place]


def drawn(
    cells: pd.DataFrame,
    alerts: pd.DataFrame,
    rows: Sequence[LayerRow],
    window: tuple[int, int, int],
) -> Drawn:
    """What the chart is made of, with what the tooltips of alerts say.

    Args:
        cells: as `described` gives them.
        alerts: columns row, bin, severity, count, detectors, step.
        rows: of the window.
        window: its first and last step, and the steps of a bin.
    """
    first, last, width = window
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


def _z_text(z: float) -> str:
    """In words: NaN where a value is not judged."""
    if math.isnan(z):
        return "none"
    if math.isinf(z):
        return "−∞ (zero)" if z < 0 else "∞"
    return f"{'+' if z > 0 else ''}{number_text(z)}"
