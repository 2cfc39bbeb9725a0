"""What floating-point numbers are like by their bits, compiled by numba: one read of a piece.

Without its sign a number's bits are ordered as its size is: the largest number has the largest
bits, infinity has those above all finite ones, and NaN those above infinity.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch

from sdc_guard.compiled import compiled

_SHORT: Final = 1 << 15  # numbers whose count fits into 16 bits


class Layout(NamedTuple):
    """How a floating-point format keeps its numbers.

    Attributes:
        word: unsigned integers of its size.
        same: torch's integers of its size.
        infinite: bits of infinity.
        one: bits of 1.
    """

    word: type[np.unsignedinteger[Any]]
    same: torch.dtype
    infinite: int
    one: int


LAYOUTS: Final = {
    torch.float16: Layout(np.uint16, torch.int16, 0x7C00, 0x3C00),
    torch.bfloat16: Layout(np.uint16, torch.int16, 0x7F80, 0x3F80),
    torch.float32: Layout(np.uint32, torch.int32, 0x7F80_0000, 0x3F80_0000),
    torch.float64: Layout(np.uint64, torch.int64, 0x7FF0 << 48, 0x3FF0 << 48),
}


class Counts(NamedTuple):
    """Of a piece.

    Attributes:
        zeros, nan, infinite: how many of its numbers are so; -0.0 is a zero.
        largest: the largest bits of a finite number without its sign.
        others: finite numbers that are neither 0 nor 1 nor -1; counted only beside one that is
            not finite, else 0.
    """

    zeros: int
    nan: int
    infinite: int
    largest: int
    others: int


def counted(words: Any, layout: Layout) -> Counts:
    """Count what is in a piece of at most 2^31 numbers.

    Args:
        words: their bits, of `layout.word`, shape (numel,).
    """
    word = layout.word
    infinite = word(layout.infinite)
    sizes = word(_sizes(layout))
    largest, zeros = _quick(words, sizes)
    if largest < layout.infinite:
        return Counts(int(zeros), 0, 0, int(largest), 0)
    return Counts(int(zeros), *map(int, _slow(words, sizes, infinite, word(layout.one))))


def _sizes(layout: Layout) -> int:
    """The bits that are not the sign."""
    return (1 << (8 * np.dtype(layout.word).itemsize - 1)) - 1


def magnitudes(words: Any, layout: Layout) -> Any:
    """The bits of finite numbers that are not zero, without their sign."""
    found = words & layout.word(_sizes(layout))
    return found[(found > 0) & (found < layout.infinite)]


def value(bits: int, dtype: torch.dtype) -> float:
    """The number that has these bits."""
    layout = LAYOUTS[dtype]
    word = torch.from_numpy(
        np.array([bits], layout.word).view(f"i{np.dtype(layout.word).itemsize}")
    )
    return float(word.view(dtype).item())


@compiled()
def _quick(words: Any, sizes: Any) -> Any:
    """The largest bits without sign, and how many are zero."""
    word = words.dtype.type  # numba widens: without these the loop takes half as many at a time
    largest, none, one = word(0), word(0), word(1)
    zeros = none
    total = 0
    for start in range(0, len(words), _SHORT):
        part = words[start : start + _SHORT]
        zeros = none
        for i in range(len(part)):
            bits = word(part[i] & sizes)
            largest = max(largest, bits)
            zeros = word(zeros + (one if bits == none else none))
        total += zeros
    return largest, total


@compiled()
def _slow(words: Any, sizes: Any, infinite: Any, one: Any) -> Any:
    """NaN, infinite, the largest finite bits, and finite numbers that are neither 0 nor 1."""
    nan, many, others = 0, 0, 0
    largest = sizes & 0
    for i in range(len(words)):
        bits = words[i] & sizes
        if bits > infinite:
            nan += 1
        elif bits == infinite:
            many += 1
        else:
            largest = max(largest, bits)
            others += bits != 0 and bits != one
    return nan, many, largest, others


@compiled()
def _longest_zeros(words: Any, sizes: Any) -> Any:
    """The most zeros one after the other."""
    longest, run = 0, 0
    for i in range(len(words)):
        run = run + 1 if words[i] & sizes == 0 else 0
        longest = max(longest, run)
    return longest


def zero_run(words: Any, layout: Layout) -> int:
    """The most zeros one after the other in a piece."""
    return int(_longest_zeros(words, layout.word(_sizes(layout))))
