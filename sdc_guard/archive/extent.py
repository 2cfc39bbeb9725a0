"""Which bytes of its storage a tensor needs, and the tensor that they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Final

import torch

from .inert_pickle import StoredTensor
from .torch_file import rebuild

# A view may repeat what is stored (`expand`). A file that claims far more than it holds would
# fill the memory of whoever copies the tensor.
_MOST_REPEATED: Final = 1_000
_FREE_BYTES: Final = 16 * 2**20


class Repeats(ValueError):
    """A tensor whose file holds far less than it has: a legal one, which is not expanded."""


def extent(tensor: StoredTensor, size: int) -> tuple[int, int]:
    """The first byte that a tensor needs, and the one after the last.

    Args:
        tensor: as the file describes it.
        size: of its storage, bytes.

    Raises:
        Repeats: it repeats what is stored more often than is expanded here.
        ValueError: it reaches out of its storage, or is no tensor.
    """
    if len(tensor.shape) != len(tensor.stride) or tensor.offset < 0:
        raise ValueError("its shape and strides are none")
    if any(number < 0 for number in (*tensor.shape, *tensor.stride)):
        raise ValueError("its shape and strides are none")
    count, item = prod(tensor.shape), tensor.dtype.itemsize
    if not count:
        return 0, 0
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride, strict=True))
    first, end = tensor.offset * item, (tensor.offset + reach + 1) * item
    if end > size:
        raise ValueError(f"it reaches to byte {end:,} of a storage of {size:,}")
    if count * item > _FREE_BYTES and count * item > _MOST_REPEATED * size:
        raise Repeats(f"it repeats {size:,} stored bytes into {count * item:,}, not expanded")
    return first, end


def read_extent(
    tensor: StoredTensor, size: int, read: Callable[[int, int], bytearray | memoryview]
) -> torch.Tensor:
    """A tensor, of whose storage only what it needs is read.

    Args:
        tensor: as the file describes it.
        size: of its storage, bytes.
        read: gives the bytes [first, end) of the storage.

    Raises:
        Repeats: it repeats what is stored more often than is expanded here.
        ValueError: it reaches out of its storage, or is no tensor.
    """
    first, end = extent(tensor, size)
    if first == end:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    content = torch.frombuffer(read(first, end), dtype=torch.uint8)
    return rebuild(content, replace(tensor, offset=0))
