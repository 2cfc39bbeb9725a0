"""How many values of a tensor are not finite. Pure; in pieces of bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ..inject.formats import FORMATS

_PIECE: Final = 1 << 20  # elements at a time


@dataclass(frozen=True)
class NonFinite:
    """Values that are no numbers of a training.

    Attributes:
        nan: elements that are NaN; of complex numbers in either part.
        infinite: elements that are infinite, and not NaN.
        first: index of the first of either, counted row by row; None where there is none.
    """

    nan: int = 0
    infinite: int = 0
    first: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        """In JSON output."""
        return {"nan": self.nan, "infinite": self.infinite, "first": self.first}


def nonfinite(tensor: torch.Tensor) -> NonFinite:
    """Count what is not finite; nothing of integers, and of dtypes without single values."""
    word = FORMATS.get(tensor.dtype)
    if word is None or word.number is None or word.element is None:
        return NonFinite()
    flat = tensor.reshape(-1)
    nan = infinite = 0
    first: int | None = None
    for start in range(0, flat.numel(), _PIECE):
        piece = _wide(flat[start : start + _PIECE])
        # a sum is not finite where an element is not: a fast pass that mostly ends here
        if bool(torch.isfinite(piece.sum())):
            continue
        odd = ~torch.isfinite(piece)
        if not bool(odd.any()):
            continue  # large numbers, whose sum overflowed
        here = int(torch.isnan(piece).sum())
        nan += here
        infinite += int(odd.sum()) - here
        first = start + int(odd.to(torch.uint8).argmax()) if first is None else first
    return NonFinite(nan, infinite, first)


def _wide(piece: torch.Tensor) -> torch.Tensor:
    """As a dtype that torch can compute with."""
    if piece.is_complex():
        return piece.to(torch.complex64) if piece.dtype == torch.complex32 else piece
    return piece.float() if piece.dtype.itemsize < 4 else piece
