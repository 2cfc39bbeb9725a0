"""The measures of a gradient in one read of host memory, compiled by numba.

Sums run in blocks: float32 inside of a block of 1,024 elements, float64 over the blocks. A block
whose squares could overflow, vanish or be no numbers is summed again in float64. A part of 2¹⁹
elements is summed by itself, and the parts are added in their order: the result has the same bits
whatever the number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray

from ..compiled import address, compiled, pointer

_BLOCK: Final = 1024
PART: Final = 1 << 19
_SIGNLESS32: Final = np.int32(0x7FFFFFFF)
# bits of float32: within these the square of a block's largest element is far from both ends of
# the range, and what smaller squares lose is below 1e-10 of the sum, even if denormals are flushed
_SMALLEST: Final = int(np.float32(1e-12).view(np.int32))
_LARGEST: Final = int(np.float32(1e15).view(np.int32))
_INFINITE32: Final = 0x7F800000
# no "nnan": a NaN has to arrive where it is counted
_FAST: Final = {"reassoc", "nsz", "contract"}


@compiled(fastmath=_FAST)
def _block32(values: Any, bits: Any) -> Any:
    square, size = np.float32(0), np.float32(0)
    zeros, largest = np.int32(0), np.int32(0)
    for i in range(len(values)):
        value = values[i]
        word = np.int32(bits[i] & _SIGNLESS32)
        square += value * value
        size += abs(value)
        # word - 1 is negative for zero alone
        zeros = np.int32(zeros - np.int32(np.int32(word - np.int32(1)) >> np.int32(31)))
        largest = max(largest, word)
    return square, size, zeros, largest


@compiled()
def _wide_block32(values: Any, bits: Any) -> Any:
    square, size, nonfinite = 0.0, 0.0, 0
    for i in range(len(values)):
        value = np.float64(values[i])
        square += value * value
        size += abs(value)
        if (bits[i] & _SIGNLESS32) >= _INFINITE32:
            nonfinite += 1
    return square, size, nonfinite


@compiled()
def _part32(address: int, count: int, out: Any) -> None:
    values = carray(pointer(address), count, np.float32)
    bits = carray(pointer(address), count, np.int32)
    squares, sizes, nonfinite, zeros, largest = 0.0, 0.0, 0, 0, np.int32(0)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        square, size, none, most = _block32(values[start:end], bits[start:end])
        zeros += none
        largest = max(largest, most)
        if most == 0 or _SMALLEST <= most <= _LARGEST:
            squares += np.float64(square)
            sizes += np.float64(size)
        else:
            wide_square, wide_size, bad = _wide_block32(values[start:end], bits[start:end])
            squares += wide_square
            sizes += wide_size
            nonfinite += bad
    words = out[1:2].view(np.int32)
    words[0] = largest
    out[1] = np.float64(words.view(np.float32)[0])
    out[0], out[2], out[3], out[4] = squares, sizes, nonfinite, zeros


@compiled()
def _part64(address: int, count: int, out: Any) -> None:
    values = carray(pointer(address), count, np.float64)
    squares, sizes, largest, nonfinite, zeros = 0.0, 0.0, 0.0, 0, 0
    for i in range(len(values)):
        value = values[i]
        size = abs(value)
        squares += value * value
        sizes += size
        largest = max(largest, size)
        zeros += value == 0
        nonfinite += not np.isfinite(value)
    out[0], out[1], out[2], out[3], out[4] = squares, largest, sizes, nonfinite, zeros


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sdc-guard-measure")


@compiled()
def _many32(addresses: Any, counts: Any, rows: Any, table: Any) -> None:
    for place in range(len(rows)):
        _part32(addresses[place], counts[place], table[rows[place]])


def sums_of_many(tensors: dict[int, torch.Tensor], table: NDArray[np.float64]) -> None:
    """Write what `sums` does for several small tensors to rows of a table, in one call.

    Args:
        tensors: by their row; float32, contiguous, of at most PART elements, on the CPU.
        table: float64, shape (at least the largest row + 1, 5).
    """
    rows = np.fromiter(tensors, np.int64, len(tensors))
    addresses = np.array([tensor.data_ptr() for tensor in tensors.values()], dtype=np.int64)
    counts = np.array([tensor.numel() for tensor in tensors.values()], dtype=np.int64)
    _many32(addresses, counts, rows, table)


def sums(tensor: torch.Tensor, out: NDArray[np.float64]) -> None:
    """Write Σg², max|g|, Σ|g|, non-finite and zero elements of a dense real tensor to `out`.

    Args:
        tensor: on the CPU, of any real floating dtype, contiguous in any memory format.
        out: float64, shape (5,). max|g| says nothing if there are non-finite elements.
    """
    count = tensor.numel()
    if count <= PART:
        _part(tensor, 0, count, out)
        return
    threads = torch.get_num_threads()
    parts = np.empty((-(-count // PART), 5))
    spans = [(start, min(PART, count - start)) for start in range(0, count, PART)]
    if threads > 1:
        pool = _pool(threads)
        jobs = [
            pool.submit(_part, tensor, *span, row) for span, row in zip(spans, parts, strict=True)
        ]
        for job in jobs:
            job.result()
    else:
        for span, row in zip(spans, parts, strict=True):
            _part(tensor, *span, row)
    np.add.reduce(parts, axis=0, out=out)
    out[1] = parts[:, 1].max()


def _part(tensor: torch.Tensor, start: int, count: int, out: NDArray[np.float64]) -> None:
    if tensor.dtype == torch.float32:
        _part32(address(tensor) + 4 * start, count, out)
    elif tensor.dtype == torch.float64:
        _part64(address(tensor) + 8 * start, count, out)
    else:
        flat = tensor.as_strided((count,), (1,), tensor.storage_offset() + start)
        wide = flat.to(torch.float32)
        _part32(wide.data_ptr(), count, out)
