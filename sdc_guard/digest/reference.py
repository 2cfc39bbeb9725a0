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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..compiled import address
from .fast_cpu import ROW_OF, sums_into

K = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
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


class Span(NamedTuple):
    """Where the elements of a shard are in the whole tensor, if they are no single run of it.

    Attributes:
        first: index of the first element.
        width: elements, at least 1, of each run of consecutive ones.
        stride: from the beginning of a run to that of the next one, in elements.
    """

    first: int
    width: int
    stride: int


def mix64(value: int) -> int:
    """SplitMix64's finalizer, a bijection of 64-bit numbers."""
    value = ((value ^ (value >> 30)) * _M1) & MASK64
    value = ((value ^ (value >> 27)) * _M2) & MASK64
    return value ^ (value >> 31)


def digest_tensor(tensor: torch.Tensor, *, offset: int | Span = 0) -> Digest:
    """The digest of one tensor.

    Args:
        tensor: any shape and dtype, on any device; read row by row whatever its strides.
        offset: index of its first element in the whole tensor, for a shard of consecutive ones,
            or the span of another shard; of a complex tensor, whose elements are two words each,
            in elements all the same.
    """
    row = digest_rows([tensor], offsets=[offset])[0].tolist()
    return Digest(*(value & MASK64 for value in row))


def digest_rows(
    tensors: list[torch.Tensor], *, offsets: Sequence[int | Span] | None = None
) -> torch.Tensor:
    """Digests of several tensors, left on their device so that nothing waits for it.

    Args:
        tensors: on one device, or on several: then the rows end on the first that is no CPU.
        offsets: as in `digest_tensor`, one per tensor; zeros by default.

    Returns:
        int64, shape (len(tensors), 3): h, s1, s2 as the bits of signed numbers.
    """
    if not tensors:
        return torch.empty((0, 3), dtype=torch.int64)
    places = offsets or [0] * len(tensors)
    if all(tensor.is_cpu for tensor in tensors):
        return _rows_in_host(tensors, places)
    with torch.no_grad():
        rows = [_sums(tensor, place) for tensor, place in zip(tensors, places, strict=True)]
        return stack_rows(rows)


def _rows_in_host(tensors: list[torch.Tensor], offsets: Sequence[int | Span]) -> torch.Tensor:
    rows = np.empty((len(tensors), 3), dtype=np.int64)
    for place, (tensor, offset) in enumerate(zip(tensors, offsets, strict=True)):
        into_row = ROW_OF.get(tensor.dtype)
        if (
            into_row is not None
            and type(offset) is int
            and tensor.is_contiguous()
            and not tensor.is_neg()
        ):
            into_row(address(tensor), tensor.numel(), offset, rows, place)
        else:
            _any_in_host(tensor, offset, rows[place])
    return torch.from_numpy(rows)


def _any_in_host(tensor: torch.Tensor, offset: int | Span, row: NDArray[np.int64]) -> None:
    first, width, stride = _span(tensor, offset)
    if tensor.is_contiguous() and not (tensor.is_complex() or tensor.is_neg()):
        sums_into(tensor, width, first, stride, row)
        return
    with torch.no_grad():
        sums_into(words(tensor), width, first, stride, row)


def _span(tensor: torch.Tensor, offset: int | Span) -> Span:
    """Where the tensor's words are."""
    count = tensor.numel()
    first, width, stride = (offset, count, count) if isinstance(offset, int) else offset
    if tensor.is_complex():
        return Span(2 * first, 2 * width, 2 * stride)
    return Span(first, width, stride)


def stack_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """Stack rows of one shape, bringing those of other devices to the first that is no CPU.

    Never the other way round: a copy to pageable host memory would have to be waited for.
    """
    devices = [row.device for row in rows]
    target = next((device for device in devices if device.type != "cpu"), devices[0])
    return torch.stack([row.to(target, non_blocking=True) for row in rows])


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits as one row of integers of the same width; complex ones as pairs."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    # integers first: copying a bool makes 1 of every other bit
    return tensor.view(_INT_OF_SIZE[tensor.element_size()]).contiguous().reshape(-1)


def _sums(tensor: torch.Tensor, offset: int | Span) -> torch.Tensor:
    row = words(tensor)
    size = 8 * row.element_size()
    first, width, stride = _span(tensor, offset)
    total = torch.zeros(3, dtype=torch.int64, device=row.device)
    for start in range(0, row.numel(), _CHUNK):
        bits = row[start : start + _CHUNK].to(torch.int64)
        if size < 64:
            bits &= (1 << size) - 1  # undo the sign extension
        index = torch.arange(start, start + bits.numel(), device=row.device)
        if width < row.numel():
            index += torch.div(index, width, rounding_mode="floor") * (stride - width)
        index += first
        mixed = mix64_tensor(index.mul(signed64(K)).bitwise_xor_(bits))
        total += torch.stack([mixed.sum(), bits.sum(), index.add_(1).mul_(bits).sum()])
    return total


def mix64_tensor(value: torch.Tensor) -> torch.Tensor:
    """`mix64` of every element of an int64 tensor, in place."""
    value.bitwise_xor_(_shift(value, 30)).mul_(signed64(_M1))
    value.bitwise_xor_(_shift(value, 27)).mul_(signed64(_M2))
    return value.bitwise_xor_(_shift(value, 31))


def _shift(value: torch.Tensor, by: int) -> torch.Tensor:
    # torch shifts int64 arithmetically: mask the copies of the sign away
    return (value >> by).bitwise_and_((1 << (64 - by)) - 1)


def signed64(value: int) -> int:
    """The signed 64-bit number with the bits of an unsigned one."""
    return value - 2**64 if value >= 2**63 else value
