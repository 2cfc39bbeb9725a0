"""A tensor put together from boxes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

_WORDS: Final = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A box of a tensor; `read` gives it in the tensor's dtype, with the shape `sizes`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    read: Callable[[], torch.Tensor]


def assembled(dtype: torch.dtype, shape: Sequence[int], parts: Sequence[Part]) -> torch.Tensor:
    """The tensor, bit for bit.

    Args:
        parts: cover it once, which is not checked here.

    Raises what reading a part raises.
    """
    if len(parts) == 1:
        return parts[0].read()
    # as words: a copy of numbers might change a NaN
    whole = torch.empty(tuple(shape), dtype=_WORDS[dtype.itemsize])
    for part in parts:
        if 0 not in part.sizes:
            ends = zip(part.offsets, part.sizes, strict=True)
            box = tuple(slice(start, start + size) for start, size in ends)
            whole[box] = part.read().view(whole.dtype)
    return whole.view(dtype)
