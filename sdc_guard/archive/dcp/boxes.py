"""Whether the chunks of a tensor, boxes with offsets and sizes, cover it once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Box = tuple[Sequence[int], Sequence[int]]  # offsets, sizes; all within the tensor
_ROWS = 1 << 20  # pairs of boxes compared at once


def cover_fault(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """What is wrong with how boxes cover a tensor of a shape; "" if each element is in one."""
    filled = [(offsets, sizes) for offsets, sizes in boxes if math.prod(sizes)]
    covered, whole = sum(math.prod(sizes) for _, sizes in filled), math.prod(shape)
    if not boxes:
        return "no chunk of it was saved"
    if overlap := _overlap(filled):
        first, second = (list(filled[index][0]) for index in overlap)
        return f"its chunks at {first} and {second} overlap"
    if covered < whole:
        return f"{whole - covered:,} of its {whole:,} elements are in no chunk"
    return ""


def _overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Two boxes that share an element."""
    if len(boxes) < 2:
        return None
    starts = np.array([offsets for offsets, _ in boxes], dtype=np.int64)
    ends = starts + np.array([sizes for _, sizes in boxes], dtype=np.int64)
    if not starts.shape[1]:
        return 0, 1
    # by the dimension with the most starts, only those whose ranges meet can overlap
    axis = max(range(starts.shape[1]), key=lambda d: len(np.unique(starts[:, d])))
    order = np.argsort(starts[:, axis], kind="stable")
    starts, ends = starts[order], ends[order]
    furthest = np.searchsorted(starts[:, axis], ends[:, axis], side="left")
    for index in range(len(boxes) - 1):
        for begin in range(index + 1, int(furthest[index]), _ROWS):
            others = slice(begin, min(int(furthest[index]), begin + _ROWS))
            meets = (starts[others] < ends[index]) & (starts[index] < ends[others])
            hits = np.flatnonzero(meets.all(axis=1))
            if len(hits):
                return int(order[index]), int(order[begin + int(hits[0])])
    return None
