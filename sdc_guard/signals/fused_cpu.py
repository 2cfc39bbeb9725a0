"""The measures of a gradient in one read of host memory, compiled by numba.

Sums run in blocks: float32 inside of a block of 512 elements, float64 over the blocks and in the
short one at the end. A block
whose squares could overflow, vanish or be no numbers is summed again in float64. A part of 2¹⁹
elements is summed by itself, and the parts are added in their order: the result has the same bits
whatever the number of threads, the processor, and whether the code was just compiled.

While one block is summed, the one that comes next is asked for. The processor by itself reads
ahead no further than a page, and a gradient that has just been written lies in a distant cache:
behind a matrix product this reads 1 MB and more about twice as fast (Xeon, one core).
"""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray

from ..compiled import address, compiled, pointer, prefetch
from .block_sums import BLOCK, block_sums
from .sums import SUMS

Numbers: TypeAlias = "array[int]"
_MEASURES: Final = len(SUMS)
ROW: Final = 8 * _MEASURES  # bytes of a table's row
_AHEAD: Final = 2048  # bytes
_LINE: Final = 64  # bytes that memory is read by
PART: Final = 1 << 19
_SIGNLESS32: Final = np.int32(0x7FFFFFFF)
# bits of float32: within these the square of a block's largest element is far from both ends of
# the range, and what smaller squares lose is below 1e-10 of the sum, even if denormals are flushed
_SMALLEST: Final = int(np.float32(1e-12).view(np.int32))
_LARGEST: Final = int(np.float32(1e15).view(np.int32))
_INFINITE32: Final = 0x7F800000


@compiled()
def _short_block32(values: Any, bits: Any) -> Any:
    """What `block_sums` does, of fewer elements, one after the other.

    In float64: hundreds of equal numbers one after the other add up the rounding errors of float32.
    """
    square, size = 0.0, 0.0
    zeros, largest = np.int32(0), np.int32(0)
    for i in range(len(values)):
        value = np.float64(abs(values[i]))
        word = np.int32(bits[i] & _SIGNLESS32)
        square += value * value
        size += value
        zeros += np.int32(word == 0)
        largest = max(largest, word)
    return (np.float32(square), np.float32(size)), (zeros, largest)


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
def _ask_for(address: int, size: int) -> None:
    for place in range(address, address + size, _LINE):
        prefetch(place)


@compiled()
def _part32(address: int, count: int, out: Any) -> None:
    values = carray(pointer(address), count, np.float32)
    bits = carray(pointer(address), count, np.int32)
    squares, sizes, nonfinite, zeros, largest = 0.0, 0.0, 0, 0, np.int32(0)
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        _ask_for(address + 4 * start + _AHEAD, min(4 * BLOCK, 4 * (count - start) - _AHEAD))
        if end - start == BLOCK:
            (square, size), (none, most) = block_sums(address + 4 * start)
        else:
            (square, size), (none, most) = _short_block32(values[start:end], bits[start:end])
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
def _in_parts32(address: int, count: int, out: Any) -> None:
    out[:] = 0.0
    part = np.empty(5)
    for start in range(0, count, PART):
        _part32(address + 4 * start, min(PART, count - start), part)
        _add(part, out)


@compiled()
def _add(part: Any, out: Any) -> None:
    largest = max(out[1], part[1])
    for place in range(5):
        out[place] += part[place]
    out[1] = largest


@compiled()
def _row32(address: int, count: int, table: Any, row: int) -> None:
    _in_parts32(address, count, table[row])


@compiled()
def _many32(addresses: int, counts: int, rows: int, number: int, table: int) -> None:
    every = carray(pointer(addresses), number, np.int64)
    sizes = carray(pointer(counts), number, np.int64)
    places = carray(pointer(rows), number, np.int64)
    for i in range(number):
        if i + 1 < number:
            _ask_for(every[i + 1], min(4 * sizes[i + 1], _AHEAD))
        out = carray(pointer(table + ROW * places[i]), _MEASURES, np.float64)
        _in_parts32(every[i], sizes[i], out)


@compiled()
def no_nonfinite_at(address: int, tensors: int) -> bool:
    """Whether none of some tensors has an element that is not finite.

    Args:
        address: of their sums, float64, shape (tensors, 5), whose owner keeps them.
    """
    found = 0.0
    for row in range(tensors):
        found += carray(pointer(address + ROW * row), _MEASURES, np.float64)[3]
    return found == 0.0


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


def sums_of_many(addresses: Numbers, counts: Numbers, rows: Numbers, table: int) -> None:
    """Write what `sums` does for several tensors to rows of a table, in one call.

    With numbers alone: NumPy's arrays take longer to make and to hand over than small tensors to
    read.

    Args:
        addresses: of their elements, float32, contiguous, in host memory; int64, as are the others.
        counts: of their elements.
        rows: of each in the table.
        table: address of float64, shape (at least the largest row + 1, 5), whose owner keeps it.
    """
    places = [numbers.buffer_info()[0] for numbers in (addresses, counts, rows)]
    _many32(*places, len(rows), table)


@compiled()
def sums_at(address: int, count: int, place: int) -> None:
    """Write what `sums` does for float32 at an address to five float64 at another one.

    By this thread alone: for no more than some 2¹⁸ of them. To call a compiled function with an
    array takes as long again as this does with numbers alone.

    Args:
        address: of `count` elements in host memory.
        place: of the five; whoever calls keeps what lies there.
    """
    _in_parts32(address, count, carray(pointer(place), _MEASURES, np.float64))


def sums_of_one(tensor: torch.Tensor, table: NDArray[np.float64], row: int) -> None:
    """Write what `sums` does for one tensor to a row of a table, with nothing around it.

    Args:
        tensor: float32, contiguous, on the CPU.
        table: float64, shape (at least row + 1, 5).
        row: of the table.

    Raises:
        ValueError: it has no memory of its own.
    """
    count = tensor.numel()
    if count > PART and torch.get_num_threads() > 1:
        sums(tensor, table[row])
    else:
        _row32(address(tensor), count, table, row)


def sums(tensor: torch.Tensor, out: NDArray[np.float64]) -> None:
    """Write Σg², max|g|, Σ|g|, non-finite and zero elements of a dense real tensor to `out`.

    Args:
        tensor: on the CPU, of any real floating dtype, contiguous in any memory format.
        out: float64, shape (5,). max|g| says nothing if there are non-finite elements.
    """
    count = tensor.numel()
    if count <= PART or torch.get_num_threads() == 1:
        _one_by_one(tensor, out)
        return
    pool = _pool(torch.get_num_threads())
    parts = np.empty((-(-count // PART), 5))
    spans = [(start, min(PART, count - start)) for start in range(0, count, PART)]
    jobs = [pool.submit(_part, tensor, *span, row) for span, row in zip(spans, parts, strict=True)]
    for job in jobs:
        job.result()
    np.add.reduce(parts, axis=0, out=out)
    out[1] = parts[:, 1].max()


def _one_by_one(tensor: torch.Tensor, out: NDArray[np.float64]) -> None:
    out[:] = 0.0
    part = np.empty(5)
    for start in range(0, tensor.numel(), PART):
        _part(tensor, start, min(PART, tensor.numel() - start), part)
        _add(part, out)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sdc-guard-measure")


def _part(tensor: torch.Tensor, start: int, count: int, out: NDArray[np.float64]) -> None:
    if tensor.dtype == torch.float32:
        _part32(address(tensor) + 4 * start, count, out)
    elif tensor.dtype == torch.float64:
        _part64(address(tensor) + 8 * start, count, out)
    else:
        flat = tensor.as_strided((count,), (1,), tensor.storage_offset() + start)
        wide = flat.to(torch.float32)
        _part32(wide.data_ptr(), count, out)
