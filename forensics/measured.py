"""What one stored tensor's values are like: counts, sizes, rows. In pieces of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

ZERO_RUN: Final = 64  # zeros, below which their places are not looked at
_PIECE: Final = 1 << 18  # elements that are looked at together: a cache holds them
_SAMPLE: Final = 1 << 14  # elements of a piece, for the median


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


def measure(tensor: torch.Tensor) -> Measured:
    """Measure a tensor of real floating-point numbers, any shape and dtype."""
    nan = infinite = zeros = zero_run = 0
    largest, mask = 0.0, True
    samples = []
    pieces = -(-tensor.numel() // _PIECE)
    step = max(1, pieces // 4)
    for place, piece in enumerate(_pieces(tensor)):
        size = piece.abs()
        most = float(size.max())
        if not math.isfinite(most):  # NaN is the largest of all
            finite = torch.isfinite(piece)
            nan += int(torch.isnan(piece).sum())
            infinite += int(torch.isinf(piece).sum())
            size = size[finite]
            mask = mask and bool(((size == 0) | (size == 1)).all())
            most = float(size.max()) if size.numel() else 0.0
        here = size.numel() - int(torch.count_nonzero(size))
        zeros += here
        if here >= ZERO_RUN:
            zero_run = max(zero_run, _zero_run(piece))
        largest = max(largest, most)
        if place % step == 0:
            samples.append(size[:: max(1, size.numel() // _SAMPLE)])
    rows, constant = _rows(tensor)
    return Measured(
        tensor.numel(), nan, infinite, zeros, largest,
        _typical(torch.cat(samples)) if samples else 0.0, mask, zero_run, rows, constant,
    )  # fmt: skip


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        yield _wide(flat[start : start + _PIECE])


def _wide(piece: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch computes with; float64 keeps its range."""
    return piece if piece.dtype in (torch.float32, torch.float64) else piece.float()


def _zero_run(piece: torch.Tensor) -> int:
    """The most zeros one after the other."""
    others = torch.nonzero(piece != 0).view(-1)
    ends = torch.tensor([-1]), torch.tensor([piece.numel()])
    return int(torch.cat([ends[0], others, ends[1]]).diff().max()) - 1


def _typical(sizes: torch.Tensor) -> float:
    used = sizes[sizes > 0]
    return float(used.median()) if used.numel() else 0.0


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
