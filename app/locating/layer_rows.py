"""The rows of a heatmap: layers, or groups of neighbours where there are too many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_ROWS: Final = 100
_LABEL: Final = 36  # characters
_CUT: Final = 10  # characters of a module's name that are left out rather than a part of them


@dataclass(frozen=True)
class LayerRow:
    """Layers that share a row.

    Attributes:
        first, last: their places in the run's order of layers, both included.
        label: short and the only one of its kind among the rows.
    """

    first: int
    last: int
    label: str

    @property
    def count(self) -> int:
        """How many layers."""
        return self.last - self.first + 1


def rows_of(
    names: Sequence[str], first: int = 0, last: int | None = None, most: int = MAX_ROWS
) -> list[LayerRow]:
    """Rows for the layers `first` to `last`, in the order in which the run has them.

    Neighbours whose names begin with the same modules share a row, with as many components of the
    name told apart as there is room for. What is still too many, or would leave three quarters of
    the room unused, is cut into pieces of equal length.

    Args:
        names: of all layers of the run.
        first, last: places among them, both included.
        most: rows; at least 1.
    """
    last = len(names) - 1 if last is None else min(last, len(names) - 1)
    first = max(first, 0)
    if first > last:
        return []
    spans = _spans(names, first, last, most)
    return _labelled([(low, high, _label(names, low, high)) for low, high in spans])


def row_of(rows: Sequence[LayerRow], place: int) -> int | None:
    """The number of the row with the layer at `place`."""
    return next((n for n, row in enumerate(rows) if row.first <= place <= row.last), None)


def _spans(names: Sequence[str], first: int, last: int, most: int) -> list[tuple[int, int]]:
    if last - first < most:
        return [(place, place) for place in range(first, last + 1)]
    parts = [names[place].split(".") for place in range(first, last + 1)]
    best, depth = [(first, last)], 1
    while depth < max(map(len, parts)):
        found = _alike(parts, depth, first)
        if len(found) > most:
            break
        best, depth = found, depth + 1
    if 4 * len(best) < most:
        return _pieces(best, most)
    return best


def _alike(parts: Sequence[Sequence[str]], depth: int, first: int) -> list[tuple[int, int]]:
    starts = [
        place
        for place in range(len(parts))
        if place == 0 or parts[place][:depth] != parts[place - 1][:depth]
    ]
    ends = [*starts[1:], len(parts)]
    return [(first + a, first + b - 1) for a, b in zip(starts, ends, strict=True)]


def _pieces(spans: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Cut at the same length within each span: at most `most` pieces."""
    length = 1
    while sum(-(-(high - low + 1) // length) for low, high in spans) > most:
        length += 1
    return [
        (start, min(start + length - 1, high))
        for low, high in spans
        for start in range(low, high + 1, length)
    ]


def _label(names: Sequence[str], low: int, high: int) -> str:
    if low == high:
        return _short(names[low])
    one, two = names[low].split("."), names[high].split(".")
    shared = [a for a, b in zip(one, two, strict=False) if a == b]
    same = one[: next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)]
    told = ".".join(same) if shared and same else _short(names[low], _LABEL - 12)
    more = f" +{high - low:,}"
    return _short(told, _LABEL - len(more)) + more


def _short(name: str, length: int = _LABEL) -> str:
    """The end of a name says more than its beginning; a short part of it is left out as a whole."""
    line = "".join(c if c.isprintable() else "·" for c in name) or "(no name)"
    if len(line) <= length:
        return line
    end = line[-(length - 1) :]
    dot = end.find(".")
    return "…" + (end[dot + 1 :] if 0 <= dot < _CUT else end)


def _labelled(spans: Sequence[tuple[int, int, str]]) -> list[LayerRow]:
    taken: set[str] = set()
    found = []
    for low, high, label in spans:
        unique, turn = label, 1
        while unique in taken:
            turn += 1
            unique = f"{label} ({turn})"
        taken.add(unique)
        found.append(LayerRow(low, high, unique))
    return found
