"""The digest of words in host memory in one read, compiled by numba; the same bits as the
reference."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray

from ..compiled import address, compiled, pointer

_K: Final = np.uint64(0x9E3779B97F4A7C15)
_M1: Final = np.uint64(0xBF58476D1CE4E5B9)
_M2: Final = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


@compiled()
def _sum_words(words: Any, width: int, first: int, stride: int, out: Any) -> None:
    h, s1, s2 = np.uint64(0), np.uint64(0), np.uint64(0)
    for begin in range(0, len(words), width):
        index = np.uint64(first + begin // width * stride)
        spread = index * _K
        for i in range(begin, begin + width):
            word = np.uint64(words[i])
            mixed = word ^ spread
            mixed = (mixed ^ (mixed >> _30)) * _M1
            mixed = (mixed ^ (mixed >> _27)) * _M2
            h += mixed ^ (mixed >> _31)
            index += _1
            spread += _K
            s1 += word
            s2 += index * word
    out[0] = np.int64(h)
    out[1] = np.int64(s1)
    out[2] = np.int64(s2)


@compiled()
def _sum_4_into_row(address: int, count: int, first: int, rows: Any, row: int) -> None:
    _sum_words(carray(pointer(address), count, np.uint32), max(count, 1), first, 0, rows[row])


@compiled()
def _sum_8_into_row(address: int, count: int, first: int, rows: Any, row: int) -> None:
    _sum_words(carray(pointer(address), count, np.uint64), max(count, 1), first, 0, rows[row])


@compiled()
def _sum_1(address: int, count: int, width: int, first: int, stride: int, out: Any) -> None:
    _sum_words(carray(pointer(address), count, np.uint8), width, first, stride, out)


@compiled()
def _sum_2(address: int, count: int, width: int, first: int, stride: int, out: Any) -> None:
    _sum_words(carray(pointer(address), count, np.uint16), width, first, stride, out)


@compiled()
def _sum_4(address: int, count: int, width: int, first: int, stride: int, out: Any) -> None:
    _sum_words(carray(pointer(address), count, np.uint32), width, first, stride, out)


@compiled()
def _sum_8(address: int, count: int, width: int, first: int, stride: int, out: Any) -> None:
    _sum_words(carray(pointer(address), count, np.uint64), width, first, stride, out)


# the usual dtypes: a call with nothing around it
ROW_OF: Final[dict[torch.dtype, Any]] = {
    torch.float32: _sum_4_into_row,
    torch.int64: _sum_8_into_row,
}
_BY_SIZE: Final[dict[int, Any]] = {1: _sum_1, 2: _sum_2, 4: _sum_4, 8: _sum_8}


def sums_into(
    words: torch.Tensor, width: int, first: int, stride: int, out: NDArray[np.int64]
) -> None:
    """Write H, S1 and S2 of contiguous words in host memory to `out`, int64, shape (3,).

    Args:
        words: of 1, 2, 4 or 8 bytes, whatever their dtype.
        width: words that are consecutive in the whole tensor as well.
        first: index of the first word in the whole tensor.
        stride: by how much the index grows from the first of `width` words to the next first.

    Raises:
        ValueError: the tensor only stands for others, and has no memory of its own.
    """
    sums = _BY_SIZE[words.element_size()]
    sums(address(words), words.numel(), max(width, 1), first, stride, out)
