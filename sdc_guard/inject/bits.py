"""Flipping one bit of a tensor's memory, whatever its dtype and strides."""

from __future__ import annotations

import torch

from ..digest.reference import signed64
from ..errors import InjectionError

_INT_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def size_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Number of words, and bits per word; a complex element is two words, as in its digest."""
    parts = 2 if tensor.is_complex() else 1
    return parts * tensor.numel(), 8 * tensor.element_size() // parts


def flip_bit(tensor: torch.Tensor, index: int, bit: int) -> tuple[int, int]:
    """Flip one bit in place, and read it back.

    Args:
        tensor: any strides; written through to its own memory.
        index: element of the flattened tensor, row by row; word, of a complex tensor.
        bit: 0 is the lowest.

    Returns:
        the element's bits before and after, unsigned.

    Raises:
        InjectionError: no such element or bit, or the element did not change as asked.
    """
    count, width = size_of(tensor)
    if not 0 <= index < count:
        raise InjectionError(f"index {index} is outside a tensor of shape {list(tensor.shape)}")
    if not 0 <= bit < width:
        raise InjectionError(f"bit {bit} is outside an element of {tensor.dtype}")
    # as integers: a float that is copied may lose its bits, a NaN's or a bool's for one
    integers = _as_integers(tensor)
    place = _place(integers.shape, index)
    mask = (1 << width) - 1
    before = int(integers[place]) & mask
    after = before ^ 1 << bit
    signed = after if width == 8 else signed64(after << 64 - width) >> 64 - width
    integers[place] = signed
    found = int(integers[place]) & mask
    if found != after:
        raise InjectionError(f"element {index} reads 0x{found:x} after writing 0x{after:x}")
    return before, after


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.data  # a fault does not touch autograd's version counter
    if tensor.is_conj() or tensor.is_neg():
        raise InjectionError("a lazily conjugated or negated tensor has no bits of its own")
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INT_OF_SIZE[tensor.element_size()])


def _place(shape: torch.Size, index: int) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        index, along = divmod(index, size)
        place.append(along)
    return tuple(reversed(place))
