"""The SUMS of many gradients on a CUDA device, in one read of its memory.

One launch for each dtype gives every program a chunk of one gradient, and one more adds up the
chunks of each gradient. Both add in a fixed order, without atomics: the same bits give the same
sums.

Elements narrower than float64 are squared in float32, after a multiplication by a power of two
that makes the largest of each _GROUP lie between 1 and 4 and is exact for all that count beside
it: no square overflows or vanishes, and a group's sum is exact to _GROUP roundings. Everything
after that is float64, which few devices compute fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import torch
import triton
import triton.language as tl

from .chunk_table import ChunkTables

ELEMENTS: Final = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float64: tl.float64,
}
_GROUP = tl.constexpr(8)  # elements that are added in float32
_LANES = tl.constexpr(512)  # groups that are added at a time, four to a thread
_TILE = tl.constexpr(8 * 512)
_FOLDED = tl.constexpr(128)  # chunks that are added at a time
_SIGNLESS32 = tl.constexpr(0x7FFFFFFF)
_SIGNLESS64 = tl.constexpr(0x7FFFFFFFFFFFFFFF)
_INFINITE32 = tl.constexpr(0x7F800000)
_INFINITE64 = tl.constexpr(0x7FF0000000000000)

_tables = ChunkTables()


def sums(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The SUMS of gradients, float64 (len, 5), on their device; nothing waits for it.

    Args:
        gradients: at least one; all on one device, of dtypes in ELEMENTS, each in one piece of
            memory, its elements in any order.
    """
    device = gradients[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        table = _tables.of(gradients)
        partials = torch.empty((table.chunks, 5), dtype=torch.float64, device=device)
        out = torch.empty((len(gradients), 5), dtype=torch.float64, device=device)
        for part in table.launches:
            sums_of_chunks[(part.chunks,)](
                table.words, partials, table.chunks, part.first, ELEMENTS[part.dtype], part.aligned
            )
        sums_of_gradients[(len(gradients),)](table.words, partials, table.chunks, out)
    return out


def _kernel(**options: Any) -> Callable[[Any], Any]:
    jit: Any = triton.jit
    return lambda function: jit(function, **options)


@_kernel()
def _add(
    places,
    mask,
    squares,
    sizes,
    largest,
    nonfinite,
    zeros,
    masked: tl.constexpr,
):
    """Add a tile of (_GROUP, _LANES) elements to the sums of each lane; outside of `mask` zeros."""
    value = tl.load(places, mask, 0.0) if masked else tl.load(places)
    if value.dtype == tl.float64:
        word = value.to(tl.int64, bitcast=True) & _SIGNLESS64
        most = tl.max(word, 0)
        bad = word >= _INFINITE64
        squares += tl.sum(value * value, 0)
        sizes += tl.sum(tl.abs(value), 0)
    else:
        value = value.to(tl.float32)
        word = value.to(tl.int32, bitcast=True) & _SIGNLESS32
        most = tl.max(word, 0)
        bad = word >= _INFINITE32
        # the exponent of the group's largest, as far as both powers of two are normal numbers
        exponent = tl.minimum(tl.maximum(most >> 23, 1), 253)
        down = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        up = (exponent << 23).to(tl.float32, bitcast=True).to(tl.float64)
        size = tl.abs(value) * down[None, :]
        squares += tl.sum(size * size, 0).to(tl.float64) * (up * up)
        sizes += tl.sum(size, 0).to(tl.float64) * up
    largest = tl.maximum(largest, most)  # as words: a NaN is above everything
    nonfinite += tl.sum(bad.to(tl.int32), 0)
    zeros += tl.sum((word == 0).to(tl.int32), 0)
    return squares, sizes, largest, nonfinite, zeros


@_kernel(do_not_specialize=["chunks", "first"])
def sums_of_chunks(
    words,
    partials,
    chunks,
    first,
    element: tl.constexpr,
    aligned: tl.constexpr,
):
    """Write the SUMS of one chunk.

    Args:
        words: of a ChunkTable.
        partials: float64 (chunks, 5).
        chunks: in the table.
        first: of this launch.
        element: the chunks' dtype.
        aligned: whether their addresses are divisible by 16.
    """
    chunk = first + tl.program_id(0)
    source = tl.load(words + chunk).to(tl.pointer_type(element))
    count = tl.load(words + chunks + chunk).to(tl.int32)
    if aligned:  # four elements to a read, so that no thread shares a group with another
        source = tl.multiple_of(source, min(16, element.primitive_bitwidth // 2))
    tile = tl.arange(0, _GROUP)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]
    squares = tl.zeros((_LANES,), tl.float64)
    sizes = tl.zeros((_LANES,), tl.float64)
    largest = tl.zeros((_LANES,), tl.int64 if element == tl.float64 else tl.int32)
    nonfinite = tl.zeros((_LANES,), tl.int32)
    zeros = tl.zeros((_LANES,), tl.int32)
    whole = count // _TILE * _TILE
    # a mask would break the wide reads up, so that only the last tile has one
    for start in range(0, whole, _TILE):
        squares, sizes, largest, nonfinite, zeros = _add(
            source + start + tile, None, squares, sizes, largest, nonfinite, zeros, False
        )
    if whole < count:
        place = whole + tile
        squares, sizes, largest, nonfinite, zeros = _add(
            source + place, place < count, squares, sizes, largest, nonfinite, zeros, True
        )
        zeros -= tl.sum((place >= count).to(tl.int32), 0)
    top = tl.max(largest, 0).to(tl.float64 if element == tl.float64 else tl.float32, bitcast=True)
    row = partials + chunk * 5
    tl.store(row, tl.sum(squares, 0))
    tl.store(row + 1, top.to(tl.float64))
    tl.store(row + 2, tl.sum(sizes, 0))
    tl.store(row + 3, tl.sum(nonfinite, 0).to(tl.float64))
    tl.store(row + 4, tl.sum(zeros, 0).to(tl.float64))


@_kernel(do_not_specialize=["chunks"])
def sums_of_gradients(words, partials, chunks, out):
    """Write the SUMS of one gradient: those of its chunks, added in their order.

    Args:
        words: of a ChunkTable.
        partials: float64 (chunks, 5).
        chunks: in the table.
        out: float64 (gradients, 5).
    """
    gradient = tl.program_id(0)
    span = words + 2 * chunks + 2 * gradient
    begin = tl.load(span).to(tl.int32)
    end = tl.load(span + 1).to(tl.int32)
    squares = tl.zeros((_FOLDED,), tl.float64)
    largest = tl.zeros((_FOLDED,), tl.int64)
    sizes = tl.zeros((_FOLDED,), tl.float64)
    nonfinite = tl.zeros((_FOLDED,), tl.float64)
    zeros = tl.zeros((_FOLDED,), tl.float64)
    for start in range(begin, end, _FOLDED):
        chunk = start + tl.arange(0, _FOLDED)
        inside = chunk < end
        row = partials + chunk * 5
        squares += tl.load(row, inside, 0.0)
        top = tl.load(row + 1, inside, 0.0).to(tl.int64, bitcast=True)
        largest = tl.maximum(largest, top & _SIGNLESS64)
        sizes += tl.load(row + 2, inside, 0.0)
        nonfinite += tl.load(row + 3, inside, 0.0)
        zeros += tl.load(row + 4, inside, 0.0)
    cell = out + gradient * 5
    tl.store(cell, tl.sum(squares, 0))
    tl.store(cell + 1, tl.max(largest, 0).to(tl.float64, bitcast=True))
    tl.store(cell + 2, tl.sum(sizes, 0))
    tl.store(cell + 3, tl.sum(nonfinite, 0))
    tl.store(cell + 4, tl.sum(zeros, 0))
