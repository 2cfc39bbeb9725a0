"""Where an element lies, in words."""

from __future__ import annotations

from collections.abc import Sequence


def place_text(index: int, shape: Sequence[int]) -> str:
    """An element's index, and its coordinates where the tensor has several dimensions.

    Args:
        index: counted row by row.
        shape: of the tensor.
    """
    if len(shape) < 2:
        return str(index)
    places, rest = [], index
    for size in reversed(shape):
        rest, place = divmod(rest, max(1, size))
        places.append(place)
    return f"{index} [{', '.join(map(str, reversed(places)))}]"
