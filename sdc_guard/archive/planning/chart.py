"""Where to keep checkpoints, as a chart of characters: ages on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .latency import Array, Latency
from .units import DAY, HOUR, MINUTE, time_text

TICKS: Final = (
    1.0, 10.0, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 100 * DAY, 365.25 * DAY,
    10 * 365.25 * DAY,
)  # fmt: skip
TICK_NAMES: Final = (
    "1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d", "7 d", "30 d", "100 d", "1 y", "10 y",
)  # fmt: skip
_BARS: Final = " ▁▂▃▄▅▆▇█"
_PLAIN: Final = " ..::==##"


@dataclass(frozen=True)
class Axis:
    """Ages on a logarithmic axis, seconds."""

    least: float
    most: float

    def ticks(self) -> list[tuple[float, str]]:
        """Age and name of the marks within it."""
        named = zip(TICKS, TICK_NAMES, strict=True)
        return [(age, name) for age, name in named if self.least <= age <= self.most]


def axis_of(latency: Latency, ages: Array) -> Axis:
    """An axis for all latencies and all ages but that of the newest, 0."""
    ends = [latency.edges[0], latency.edges[-1], *ages[ages > 0]]
    return Axis(float(min(ends)), float(max(ends)))


def per_factor(latency: Latency, edges: Array) -> Array:
    """The probability between each two edges, of equal factors, in parts of the largest."""
    share = np.diff(latency.within(edges)[0])
    return share / share.max() if share.max() > 0 else share


def text_chart(latency: Latency, ages: Array, width: int = 78, *, plain: bool = False) -> list[str]:
    """The chart, a line for each of: the latency's density, how many are kept, the ages.

    Args:
        latency: f; shown per factor of age, as the axis is.
        ages: of what is kept, seconds.
        width: columns.
        plain: ASCII alone.
    """
    axis = axis_of(latency, ages)
    columns = width - 10
    edges = np.geomspace(axis.least, axis.most * (1 + 1e-9), columns + 1)
    heights = per_factor(latency, edges)
    bars = _PLAIN if plain else _BARS
    density = "".join(bars[math.ceil(8 * height - 1e-9)] for height in heights)
    kept, _ = np.histogram(ages[ages > 0], np.concatenate([[edges[0] * (1 - 1e-9)], edges[1:]]))
    counts = "".join(" " if n == 0 else str(n) if n < 10 else "+" for n in kept)
    return [
        f"{'latency':<10}{density}".rstrip(),
        f"{'kept':<10}{counts}".rstrip(),
        f"{'age':<10}{_labels(axis, columns)}".rstrip(),
        f"{'':10}kept: checkpoints in each column, + for ten and more; the newest is at 0",
    ]


def _labels(axis: Axis, columns: int) -> str:
    ticks: Sequence[tuple[float, str]] = axis.ticks() or [(axis.least, time_text(axis.least))]
    line = [" "] * columns
    free = 0
    span = math.log(axis.most / axis.least)
    for age, name in ticks:
        place = 0 if span == 0 else int(math.log(age / axis.least) / span * (columns - 1))
        mark = f"|{name}"
        if place < free or place + len(mark) > columns:
            continue
        line[place : place + len(mark)] = mark
        free = place + len(mark) + 1
    return "".join(line)
