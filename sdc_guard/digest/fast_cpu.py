"""The digest of words in host memory in one read, compiled by numba; the same bits as the
reference."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import carray

from ..compiled import compiled, pointer
from .lanes import M1, M2, STEP, K, sums_of_1, sums_of_2, sums_of_4, sums_of_8

_K, _M1, _M2 = np.uint64(K), np.uint64(M1), np.uint64(M2)
_30, _27, _31, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)
_STEP: Final = np.int64(STEP)


@compiled()
def _added_to(sums: Any, words: Any, first: Any, stride: Any) -> Any:
    """Sums with those of a few words more."""
    h, s1, s2 = sums
    index = first
    for i in range(len(words)):
        word = np.uint64(words[i])
        mixed = word ^ (index * _K)
        mixed = (mixed ^ (mixed >> _30)) * _M1
        mixed = (mixed ^ (mixed >> _27)) * _M2
        h += mixed ^ (mixed >> _31)
        s1 += word
        s2 += (index + _1) * word
        index += stride
    return h, s1, s2


@compiled()
def _run(address: int, size: int, count: int, first: Any, stride: Any) -> Any:
    """H, S1 and S2 of words of `size` bytes that have every `stride`-th index from `first` on."""
    steps = count // _STEP
    short = count - steps * _STEP
    rest = pointer(address + size * (count - short))
    after = first + stride * np.uint64(count - short)
    if size == 4:
        sums = sums_of_4(address, steps, first, stride)
        return _added_to(sums, carray(rest, short, np.uint32), after, stride)
    if size == 2:
        sums = sums_of_2(address, steps, first, stride)
        return _added_to(sums, carray(rest, short, np.uint16), after, stride)
    if size == 1:
        sums = sums_of_1(address, steps, first, stride)
        return _added_to(sums, carray(rest, short, np.uint8), after, stride)
    sums = sums_of_8(address, steps, first, stride)
    return _added_to(sums, carray(rest, short, np.uint64), after, stride)


@compiled()
def _write(sums: Any, rows: Any, row: int) -> None:
    rows[row, 0] = np.int64(sums[0])
    rows[row, 1] = np.int64(sums[1])
    rows[row, 2] = np.int64(sums[2])


@compiled()
def run_at(address: int, size: int, count: int, first: int, place: int) -> None:
    """Write H, S1 and S2 of contiguous words in host memory to three int64 there.

    With numbers alone: to hand over an array takes as long as to read a few thousand words.

    Args:
        address: of the first word.
        size: bytes of a word: 1, 2, 4 or 8.
        count: words.
        first: index of the first word in the whole tensor.
        place: address of the three; whoever calls keeps what lies there.
    """
    row = carray(pointer(place), (1, 3), np.int64)
    _write(_run(address, size, count, np.uint64(first), _1), row, 0)


@compiled()
def runs_into(
    address: int, size: int, first: int, sizes: Any, strides: Any, rows: Any, row: int
) -> None:
    """Add H, S1 and S2 of contiguous words that are nested runs of the whole tensor to a row.

    Args:
        address, size, first: as of `run_at`.
        rows: int64, shape (at least row + 1, 3).
        row: of the table.
        sizes, strides: int64, of a Span, at least one level.
    """
    inner = len(sizes) - 1
    width, stride = sizes[inner], np.uint64(strides[inner])
    runs = 1
    for level in range(inner):
        runs *= sizes[level]
    h, s1, s2 = np.uint64(rows[row, 0]), np.uint64(rows[row, 1]), np.uint64(rows[row, 2])
    for run in range(runs):
        index, left = first, run
        for level in range(inner - 1, -1, -1):
            index += left % sizes[level] * strides[level]
            left //= sizes[level]
        found = _run(address, size, width, np.uint64(index), stride)
        h, s1, s2 = h + found[0], s1 + found[1], s2 + found[2]
        address += size * width
    _write((h, s1, s2), rows, row)
