"""The digests of tensors, each by the fastest path that there is for it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..compiled import address
from .as_words import as_words
from .fast_cpu import run_at, runs_into
from .reference import MASK64, Digest, is_plain
from .span import Place, Span, pieces

_ROW: Final = 24  # bytes


def digest_tensor(tensor: torch.Tensor, *, offset: Place = 0) -> Digest:
    """The digest of one tensor.

    Args:
        tensor: any shape and dtype, on any device; read row by row whatever its strides.
        offset: index of its first element in the whole tensor, for a part of consecutive ones,
            or the place of another part; of a complex tensor, whose elements are two words each,
            in elements all the same.
    """
    row = digest_rows([tensor], offsets=[offset])[0].tolist()
    return Digest(*(value & MASK64 for value in row))


def digest_rows(
    tensors: list[torch.Tensor], *, offsets: Sequence[Place] | None = None
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
    elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
    if not elsewhere and not torch.compiler.is_compiling():
        return rows_in_host(tensors, places)
    from .device_rows import rows_on_devices

    return rows_on_devices(tensors, places)


def rows_in_host(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """`digest_rows` of tensors in host memory."""
    return torch.from_numpy(array_in_host(tensors, places))


def array_in_host(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> NDArray[np.int64]:
    """The same as an array."""
    rows = np.empty((len(tensors), 3), dtype=np.int64)
    memory = rows.ctypes.data
    for row, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        if type(place) is int and is_plain(tensor):
            out = memory + _ROW * row
            run_at(address(tensor), tensor.element_size(), tensor.numel(), place, out)
        else:
            rows[row] = 0
            with torch.no_grad():
                for piece, where in pieces(tensor, place):
                    _add(piece, where, rows, row)
    return rows


def content_in_host(tensors: Sequence[torch.Tensor]) -> bytes:
    """The bytes of `array_in_host` of whole tensors: in less time, of small ones."""
    if not all(map(is_plain, tensors)):
        return array_in_host(tensors, [0] * len(tensors)).tobytes()
    numbers = array("q", bytes(_ROW * len(tensors)))
    place = numbers.buffer_info()[0]
    for tensor in tensors:
        run_at(address(tensor), tensor.element_size(), tensor.numel(), 0, place)
        place += _ROW
    return numbers.tobytes()


def _add(tensor: torch.Tensor, place: int | Span, rows: NDArray[np.int64], row: int) -> None:
    bits, span = as_words(tensor, place)
    first, sizes, strides = _levels(span)
    runs_into(address(bits), bits.element_size(), first, sizes, strides, rows, row)


@lru_cache(4096)
def _levels(span: Span) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    first, sizes, strides = span
    return first, np.array(sizes, dtype=np.int64), np.array(strides, dtype=np.int64)
