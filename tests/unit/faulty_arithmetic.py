"""A machine that computes wrongly: a dispatch mode that changes what torch's products return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


class FaultyProducts(TorchDispatchMode):
    """Hands each result of a product to `spoil`, with how many there were before.

    Args:
        spoil: changes a result in place.
        names: of the operations that count as products.

    Attributes:
        calls: products so far.
    """

    def __init__(
        self, spoil: Callable[[int, torch.Tensor], None], names: tuple[str, ...] = PRODUCTS
    ) -> None:
        super().__init__()
        self.calls = 0
        self._spoil, self._names = spoil, names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in self._names:
            self._spoil(self.calls, result)
            self.calls += 1
        return result


class RoundedProducts(TorchDispatchMode):
    """Rounds the factors of products to nearest: 10 bits of mantissa are those of TF32."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._cut = 23 - bits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func.overloadpacket.__name__ in PRODUCTS:
            args = [self._rounded(x) if isinstance(x, torch.Tensor) else x for x in args]
        return func(*args, **(kwargs or {}))

    def _rounded(self, factor: torch.Tensor) -> torch.Tensor:
        words = factor.contiguous().view(torch.int32) + (1 << (self._cut - 1))
        return (words & -(1 << self._cut)).view(torch.float32)


def flip(result: torch.Tensor, index: int, bit: int) -> None:
    """Flip one bit of a float32 result in place."""
    result.view(torch.int32).view(-1)[index] ^= 1 << bit
