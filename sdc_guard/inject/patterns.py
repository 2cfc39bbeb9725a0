"""Which elements a fault hits: one, or several in a shape that hardware fails in."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InjectionError
from .fault import PATTERNS, Pattern

MOST_ELEMENTS: Final = 1 << 20  # each takes 112 bytes of device memory, and a line in the record


class Elements(NamedTuple):
    """Elements of a tensor.

    Attributes:
        indices: int64, ascending, of the tensor flattened row by row.
        clipped: whether the pattern reached beyond an edge of the tensor and ends there.
    """

    indices: NDArray[np.int64]
    clipped: bool = False


def flat_index(index: int | Sequence[int], shape: Sequence[int], name: str = "the tensor") -> int:
    """The index in the flattened tensor of one given so, or by shape.

    Raises:
        InjectionError: there is no such element; it names the shape.
    """
    count = math.prod(shape)
    if isinstance(index, Sequence):
        place = [operator.index(x) for x in index]
        inside = len(place) == len(shape) and all(
            0 <= x < size for x, size in zip(place, shape, strict=True)
        )
        found = 0
        for x, size in zip(place, shape, strict=False):
            found = found * size + x
    else:
        found = operator.index(index)
        inside = 0 <= found < count
    if not inside:
        told = index if isinstance(index, int) else list(index)
        raise InjectionError(
            f"index {told} is outside {name} of shape {list(shape)}",
            next_step=f"0 to {count - 1}, or {len(shape)} numbers" if count else "",
        )
    return found


def elements(
    pattern: Pattern,
    first: int,
    shape: Sequence[int],
    *,
    height: int = 1,
    width: int = 1,
    period: int = 32,
    name: str = "the tensor",
) -> Elements:
    """The elements of a pattern.

    Args:
        pattern: "element": `first` alone. "row": all that differ from it in the last dimension
            alone; "column": in the last but one. "tile": `height` × `width` of these two, with
            `first` at its lowest indices; what would lie beyond the edge is left out. "lane":
            `first` and `width` − 1 that follow it, and the same again each `period` elements, to
            the end of the flattened tensor. A tensor with one dimension is one row, a scalar a
            row of one element.
        first: index in the flattened tensor.
        shape: of the tensor.

    Raises:
        InjectionError: no such pattern or element, sizes that make none, or too many elements.
    """
    if pattern not in PATTERNS:
        raise InjectionError(f"no pattern {pattern!r}", next_step=f"one of {', '.join(PATTERNS)}")
    first = flat_index(first, shape, name)
    if height < 1 or width < 1 or period < 1:
        raise InjectionError(
            f"a {pattern} of height {height}, width {width}, period {period} for {name}",
            next_step="each is at least 1",
        )
    if pattern == "lane":
        return _lane(first, math.prod(shape), width, period, name)
    rows, columns = ([1, 1, *shape])[-2:]
    row, column = divmod(first % (rows * columns), columns)
    corner = first - row * columns - column
    if pattern == "element":
        return Elements(np.array([first], np.int64))
    if pattern == "row":
        return _block(corner, columns, range(row, row + 1), range(columns), name)
    if pattern == "column":
        return _block(corner, columns, range(rows), range(column, column + 1), name)
    down, right = range(row, min(row + height, rows)), range(column, min(column + width, columns))
    found = _block(corner, columns, down, right, name)
    return found._replace(clipped=row + height > rows or column + width > columns)


def _block(corner: int, columns: int, down: range, right: range, name: str) -> Elements:
    _refuse_too_many(len(down) * len(right), name)
    lines = np.arange(down.start, down.stop, dtype=np.int64)[:, None] * columns
    return Elements((corner + lines + np.arange(right.start, right.stop, dtype=np.int64)).ravel())


def _lane(first: int, count: int, width: int, period: int, name: str) -> Elements:
    if width > period:
        raise InjectionError(
            f"a lane of {width} elements each {period} hits some of {name} twice",
            next_step="width is at most the period",
        )
    starts = range(first, count, period)
    _refuse_too_many(len(starts) * width, name)
    begin = np.arange(first, count, period, dtype=np.int64)[:, None]
    found = (begin + np.arange(width, dtype=np.int64)).ravel()
    return Elements(found[found < count])


def _refuse_too_many(count: int, name: str) -> None:
    if count > MOST_ELEMENTS:
        raise InjectionError(
            f"{count} elements of {name} in one fault, above {MOST_ELEMENTS}",
            next_step="a larger period, or another pattern",
        )
