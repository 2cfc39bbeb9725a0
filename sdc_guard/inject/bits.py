"""A tensor's words in its own memory, whatever its dtype and strides; flipping one bit of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..digest.reference import signed64
from ..errors import InjectionError
from .formats import format_of

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
    integers = as_integers(tensor)
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


def refuse_unfit(tensor: torch.Tensor, name: str = "the tensor") -> None:
    """Refuse a tensor whose words have no memory of their own each.

    Raises:
        InjectionError: a dtype that is not supported, a sparse tensor, one that is lazily
            conjugated or negated, or one of whose elements several share memory; it names the
            tensor and its dtype.
    """
    what = f"{name} ({tensor.dtype})"
    if tensor.layout != torch.strided or tensor.is_nested:
        raise InjectionError(
            f"{what} is {'nested' if tensor.is_nested else tensor.layout}: no element has a place",
            next_step="inject into its values",
        )
    format_of(tensor.dtype, name)
    if tensor.is_conj() or tensor.is_neg():
        raise InjectionError(f"{what} is lazily conjugated or negated: it has no bits of its own")
    if _overlaps(tensor.shape, tensor.stride()):
        raise InjectionError(
            f"{what} of shape {list(tensor.shape)} has several elements in one place of memory",
            next_step="inject into the tensor that it was expanded from",
        )


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's words as integers of their size, in its own memory.

    As integers, because a float that is copied may lose its bits: those of a NaN, or of a bool
    that is neither 0 nor 1.

    Returns:
        a view of the tensor's shape, and one more dimension of 2 for complex ones; autograd's
        version counter does not see what is written to it.

    Raises:
        InjectionError: see `refuse_unfit`.
    """
    refuse_unfit(tensor)
    tensor = tensor.data
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INT_OF_SIZE[tensor.element_size()])


def memory(integers: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first word to its last one, as one row."""
    if not integers.numel():
        return integers.as_strided((0,), (1,))
    steps = zip(integers.shape, integers.stride(), strict=True)
    return integers.as_strided((1 + sum((size - 1) * step for size, step in steps),), (1,))


def levels(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """A tensor's dimensions as few (size, stride) as index its memory in the same order."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found or [(1, 1)]


def offsets(integers: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Places in `memory` of words given by their index, row by row; both int64."""
    inner = levels(integers.shape, integers.stride())
    found = torch.zeros_like(indices)
    for size, stride in inner[:0:-1]:
        above = torch.div(indices, size, rounding_mode="floor")
        found += (indices - above * size) * stride
        indices = above
    return found.add_(indices, alpha=inner[0][1])


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory: a dimension steps less than those inside of it reach."""
    reach = 0
    for stride, size in sorted((b, a) for a, b in zip(shape, strides, strict=True) if a > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _place(shape: torch.Size, index: int) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        index, along = divmod(index, size)
        place.append(along)
    return tuple(reversed(place))
