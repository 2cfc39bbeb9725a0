"""The digest of a tensor in plain torch: what every faster path must reproduce.

    H  = Σ mix64(bits(wᵢ) xor K·i)   mod 2⁶⁴
    S1 = Σ bits(wᵢ)                  mod 2⁶⁴
    S2 = Σ (i+1)·bits(wᵢ)            mod 2⁶⁴

i is the element's index in the whole tensor, row by row; bits(wᵢ) its bits as an unsigned number.
Sums of a bijection of each element's bits and place are free of order and additive: the digests
of the shards of a tensor add up to the digest of the tensor. mix64 is the finalizer of SplitMix64
(Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), and K its increment,
2⁶⁴ divided by the golden ratio. S1 and S2 locate a change of a single element (see `solve`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .lanes import M1, M2, K
from .span import Span, runs_of

MASK64 = 2**64 - 1
_CHUNK = 1 << 20  # elements at a time: bounds the temporary memory at 8 MB an intermediate

_INT_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Digest(NamedTuple):
    """The three sums, as unsigned 64-bit Python integers."""

    h: int
    s1: int
    s2: int

    def __add__(self, other: object) -> Digest:
        if not isinstance(other, Digest):
            return NotImplemented
        return Digest(*((a + b) & MASK64 for a, b in zip(self, other, strict=True)))


def mix64(value: int) -> int:
    """SplitMix64's finalizer, a bijection of 64-bit numbers."""
    value = ((value ^ (value >> 30)) * M1) & MASK64
    value = ((value ^ (value >> 27)) * M2) & MASK64
    return value ^ (value >> 31)


def stack_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """Stack rows of one shape, bringing those of other devices to the first that is no CPU.

    Never the other way round: a copy to pageable host memory would have to be waited for.
    """
    devices = [row.device for row in rows]
    target = next((device for device in devices if device.type != "cpu"), devices[0])
    return torch.stack([row.to(target, non_blocking=True) for row in rows])


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes of a tensor's memory are its words, in their order."""
    return tensor.is_contiguous() and not (tensor.is_complex() or tensor.is_neg())


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits as one row of integers of the same width; complex ones as pairs."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    # integers first: copying a bool makes 1 of every other bit
    return tensor.view(_INT_OF_SIZE[tensor.element_size()]).contiguous().reshape(-1)


def sums(tensor: torch.Tensor, place: int | Span) -> torch.Tensor:
    """H, S1 and S2 of a tensor by plain torch operations, int64 (3,), on its device.

    The bits of signed numbers. Nothing waits for the device.
    """
    row = words(tensor)
    span = runs_of(place, tensor.numel(), 2 if tensor.is_complex() else 1)
    total = torch.zeros(3, dtype=torch.int64, device=row.device)
    for start in range(0, row.numel(), _CHUNK):
        bits = unsigned(row[start : start + _CHUNK])
        index = indices(span, start, bits)
        mixed = mix64_tensor(index.mul(signed64(K)).bitwise_xor_(bits))
        total += torch.stack([mixed.sum(), bits.sum(), index.add_(1).mul_(bits).sum()])
    return total


def unsigned(row: torch.Tensor) -> torch.Tensor:
    """`words` as int64; those of 8 bytes stay as they are."""
    bits = row.to(torch.int64, copy=True)
    # undo the sign extension
    return bits if row.element_size() == 8 else bits.bitwise_and_((1 << 8 * row.element_size()) - 1)


def indices(span: Span, start: int, like: torch.Tensor) -> torch.Tensor:
    """In the whole tensor, of as many words from position `start` on as there are in `like`.

    Args:
        span: of the words, as `runs_of` makes it.
    """
    left = torch.arange(start, start + like.numel(), device=like.device)
    if len(span.sizes) == 1:
        return left.mul_(span.strides[0]).add_(span.first)
    found = torch.full_like(left, span.first)
    for size, stride in zip(span.sizes[:0:-1], span.strides[:0:-1], strict=True):
        above = torch.div(left, size, rounding_mode="floor")
        found += left.sub_(above, alpha=size).mul_(stride)
        left = above
    return found.add_(left, alpha=span.strides[0])


def mix64_tensor(value: torch.Tensor) -> torch.Tensor:
    """`mix64` of every element of an int64 tensor, in place."""
    value.bitwise_xor_(_shift(value, 30)).mul_(signed64(M1))
    value.bitwise_xor_(_shift(value, 27)).mul_(signed64(M2))
    return value.bitwise_xor_(_shift(value, 31))


def _shift(value: torch.Tensor, by: int) -> torch.Tensor:
    # torch shifts int64 arithmetically: mask the copies of the sign away
    return (value >> by).bitwise_and_((1 << (64 - by)) - 1)


def signed64(value: int) -> int:
    """The signed 64-bit number with the bits of an unsigned one."""
    return value - 2**64 if value >= 2**63 else value
