"""What the address says of the page Locate, and what a click on a cell asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .layer_rows import LayerRow
from .scans import Window
from .step_bins import around

_SPAN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True)
class Clicked:
    """What a click asks for.

    Attributes:
        step, layer: that are selected; the layer by its place.
        steps, layers: what to show from now on, first and last; None where nothing is finer.
    """

    step: int
    layer: int
    steps: tuple[int, int] | None
    layers: tuple[int, int] | None


def span_of(text: str | None, low: int, high: int) -> tuple[int, int]:
    """`20-40` within low to high; all of it where the text says nothing that lies within."""
    match = _SPAN.fullmatch(text or "")
    if match is None:
        return low, high
    first, last = max(low, int(match[1])), min(high, int(match[2]))
    return (first, last) if first <= last else (low, high)


def span_text(span: tuple[int, int]) -> str:
    """The way back from `span_of`."""
    return f"{span[0]}-{span[1]}"


def clicked(
    row: LayerRow, step: int, layer: int, window: Window, known: tuple[int, int]
) -> Clicked:
    """A click on a cell: it is selected, and a coarse one is zoomed in on.

    Args:
        row: of the cell.
        step, layer: of the value that the cell shows; the layer by its place.
        window: that was shown.
        known: first and last step of the run.
    """
    steps = around(step, *known) if window.width > 1 else None
    return Clicked(step, layer, steps, (row.first, row.last) if row.count > 1 else None)


def place_of(names: Sequence[str], name: str | None) -> int | None:
    """The place of a layer by its name."""
    return names.index(name) if name is not None and name in names else None
