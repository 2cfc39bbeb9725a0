"""What one stored tensor's values are like: counts, sizes, rows. In pieces of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from .word_measures import LAYOUTS, Layout, counted, magnitudes, value, zero_run

ZERO_RUN: Final = 64  # zeros, below which their places are not looked at
_PIECE: Final = 1 << 19  # elements that are looked at together: a cache holds them
_SAMPLE: Final = 1 << 12  # elements of a piece, for the median


@dataclass(frozen=True)
class Measured:
    """The values of a tensor.

    Attributes:
        numel: elements.
        nan, infinite, zeros: how many elements are so; -0.0 is a zero.
        largest: of the absolute values of finite elements; 0.0 where there are none.
        typical: median of the absolute values of elements that are finite and not zero, of a
            sample where there are many; 0.0 where there are none.
        mask: whether all finite elements beside infinite ones are 0 or 1, as those of attention
            masks.
        zero_run: the most zeros in a row; 0 where there are fewer than ZERO_RUN at all.
        rows: of its first dimension, where it has several of more than one element; else 0.
        constant_rows: how many of them are one value throughout.
    """

    numel: int
    nan: int
    infinite: int
    zeros: int
    largest: float
    typical: float
    mask: bool
    zero_run: int
    rows: int
    constant_rows: int


def measure(tensor: torch.Tensor, each: Callable[[Any], object] = lambda piece: None) -> Measured:
    """Measure a tensor of real floating-point numbers, any shape and dtype.

    Args:
        each: called with the bytes of each piece in turn, row by row, while a cache holds them.
    """
    flat = tensor.detach().contiguous().view(-1)
    layout = LAYOUTS.get(flat.dtype)
    nan = infinite = zeros = run = 0
    largest, mask = 0.0, True
    samples = []
    step = max(1, -(-flat.numel() // _PIECE) // 4)
    for place, start in enumerate(range(0, flat.numel(), _PIECE)):
        piece = flat[start : start + _PIECE]
        each(piece.view(torch.uint8).numpy())
        found = _by_value(piece) if layout is None else _by_word(piece, layout, place % step == 0)
        nan, infinite, zeros = nan + found.nan, infinite + found.infinite, zeros + found.zeros
        mask = mask and found.mask
        run = max(run, found.zero_run)
        largest = max(largest, found.largest)
        if place % step == 0:
            samples.append(found.sample)
    rows, constant = _rows(tensor)
    return Measured(
        tensor.numel(), nan, infinite, zeros, largest,
        _typical(samples, flat.dtype) if samples else 0.0, mask, run, rows, constant,
    )  # fmt: skip


@dataclass(frozen=True)
class _Piece:
    """As of `Measured`; `sample` is some of its sizes, as numbers or as bits without sign."""

    nan: int
    infinite: int
    zeros: int
    largest: float
    mask: bool
    zero_run: int
    sample: Any


def _by_word(piece: torch.Tensor, layout: Layout, sample: bool) -> _Piece:
    words = piece.view(layout.same).numpy().view(layout.word)
    found = counted(words, layout)
    some = words[:: max(1, len(words) // _SAMPLE)] if sample else words[:0]
    return _Piece(
        found.nan, found.infinite, found.zeros, value(found.largest, piece.dtype),
        not found.others, zero_run(words, layout) if found.zeros >= ZERO_RUN else 0,
        magnitudes(some, layout),
    )  # fmt: skip


def _by_value(piece: torch.Tensor) -> _Piece:
    """Of formats that numpy has no words of, or that have no infinity: float8 and the like."""
    piece = _wide(piece)
    finite = torch.isfinite(piece)
    size = piece.abs()[finite]
    nan, infinite = int(torch.isnan(piece).sum()), int(torch.isinf(piece).sum())
    zeros = size.numel() - int(torch.count_nonzero(size))
    mask = not (nan or infinite) or bool(((size == 0) | (size == 1)).all())
    sample = size[:: max(1, size.numel() // _SAMPLE)]
    return _Piece(
        nan, infinite, zeros, float(size.max()) if size.numel() else 0.0, mask,
        _zeros_in_a_row(piece) if zeros >= ZERO_RUN else 0, sample[sample > 0].numpy(),
    )  # fmt: skip


def _wide(piece: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch computes with; float64 keeps its range."""
    return piece if piece.dtype in (torch.float32, torch.float64) else piece.float()


def _zeros_in_a_row(piece: torch.Tensor) -> int:
    """The most zeros one after the other."""
    others = torch.nonzero(piece != 0).view(-1)
    ends = torch.tensor([-1]), torch.tensor([piece.numel()])
    return int(torch.cat([ends[0], others, ends[1]]).diff().max()) - 1


def _typical(samples: list[Any], dtype: torch.dtype) -> float:
    """The lower median of sizes, which are ordered as their bits are."""
    used = np.concatenate(samples)
    if not len(used):
        return 0.0
    middle = (len(used) - 1) // 2
    found = np.partition(used, middle)[middle]
    return value(int(found), dtype) if dtype in LAYOUTS else float(found)


def _rows(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.dim() < 2 or not tensor.numel() or tensor.numel() == tensor.shape[0]:
        return 0, 0
    rows = tensor.reshape(tensor.shape[0], -1)
    constant = 0
    ends = _wide(rows[:, 0]), _wide(rows[:, -1])
    alike = torch.nonzero(ends[0] == ends[1]).view(-1)  # most are not even that
    for some in torch.split(alike, max(1, _PIECE // rows.shape[1])):
        part = _wide(rows[some])
        constant += int((part == part[:, :1]).all(dim=1).sum())
    return rows.shape[0], constant


def is_measured(dtype: torch.dtype) -> bool:
    """Whether a dtype's values can be measured: real and floating-point."""
    # two elements of 4 bits share a byte, and torch cannot take them apart
    return dtype.is_floating_point and "float4" not in str(dtype)


def growth(one: float, other: float) -> float:
    """How many times as large `one` is as `other`; infinite where that is zero."""
    if one == other:
        return 1.0
    return one / other if other > 0 else math.inf
