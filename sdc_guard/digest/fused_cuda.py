"""H, S1 and S2 of many tensors on a CUDA device, in one read of its memory.

One launch for each size of word, alignment and depth of nesting gives every program a chunk of
one tensor; it adds its sums to the tensor's row. All of it is done on integers, modulo 2⁶⁴: the
order in which programs come to add does not show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from ..device_tables import KeptTables
from . import lanes
from .word_table import Piece, WordTable, table

WORDS: Final = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}  # by size
_GROUP = tl.constexpr(4)  # words of a thread's lane that are read before any is taken in
_LANES = tl.constexpr(512)  # four words to a thread
_TILE = tl.constexpr(4 * 512)
_K = tl.constexpr(lanes.K)
_M1 = tl.constexpr(lanes.M1)
_M2 = tl.constexpr(lanes.M2)

_tables: Final[KeptTables[WordTable]] = KeptTables()


def rows(pieces: Sequence[Piece], count: int, device: torch.device) -> torch.Tensor:
    """The digests of words on a device, int64 (count, 3); nothing waits for it.

    Args:
        pieces: their words; those of one row add up.
        count: of rows.
    """
    out = torch.zeros((count, 3), dtype=torch.int64, device=device)
    if not pieces:
        return out
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        made = _tables.get(device, tuple(pieces), lambda: table(pieces, device))
        for part in made.launches:
            digest_chunks[(part.chunks,)](
                made.words, out, made.chunks, part.first, made.depth,
                WORDS[part.size], part.aligned, part.levels, part.short,
            )  # fmt: skip
    return out


def _kernel(**options: Any) -> Callable[[Any], Any]:
    jit: Any = triton.jit
    return lambda function: jit(function, **options)


@_kernel()
def _index(position, piece, levels: tl.constexpr):
    """In the whole tensor, of words of a piece; its first word's index lies at `piece`."""
    index = tl.load(piece).to(tl.uint64)
    left = position
    for level in tl.static_range(levels - 1, 0, -1):
        size = tl.load(piece + 2 + 2 * level).to(position.dtype)
        stride = tl.load(piece + 3 + 2 * level).to(tl.uint64)
        above = left // size
        index += (left - above * size).to(tl.uint64) * stride
        left = above
    return index + left.to(tl.uint64) * tl.load(piece + 3).to(tl.uint64)


@_kernel()
def _add(places, position, piece, mask, h, s1, s2, masked: tl.constexpr, levels: tl.constexpr):
    """Add a tile of (_GROUP, _LANES) words to the sums of each lane."""
    word = (tl.load(places, mask, 0) if masked else tl.load(places)).to(tl.uint64)
    index = _index(position, piece, levels)
    mixed = word ^ (index * _K)
    mixed = (mixed ^ (mixed >> 30)) * _M1
    mixed = (mixed ^ (mixed >> 27)) * _M2
    mixed = mixed ^ (mixed >> 31)
    if masked:
        mixed = tl.where(mask, mixed, 0)
    return h + tl.sum(mixed, 0), s1 + tl.sum(word, 0), s2 + tl.sum((index + 1) * word, 0)


@_kernel(do_not_specialize=["chunks", "first", "depth"])
def digest_chunks(
    words,
    out,
    chunks,
    first,
    depth,
    element: tl.constexpr,
    aligned: tl.constexpr,
    levels: tl.constexpr,
    short: tl.constexpr,
):
    """Add H, S1 and S2 of one chunk to its row.

    Args:
        words: of a WordTable.
        out: int64 (rows, 3), zeros at first.
        chunks: in the table.
        first: of this launch.
        depth: of the table.
        element: the chunks' words.
        aligned: whether their addresses are divisible by 16.
        levels: of the runs that they are.
        short: whether positions fit into 32 bits.
    """
    chunk = first + tl.program_id(0)
    source = tl.load(words + chunk).to(tl.pointer_type(element))
    count = tl.load(words + chunks + chunk).to(tl.int32)
    start = tl.load(words + 2 * chunks + chunk).to(tl.uint32 if short else tl.uint64)
    piece = words + 4 * chunks + tl.load(words + 3 * chunks + chunk) * (2 + 2 * depth)
    if aligned:  # four words to a read, so that no thread shares a lane with another
        source = tl.multiple_of(source, min(16, element.primitive_bitwidth // 2))
    tile = tl.arange(0, _GROUP)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]
    h = tl.zeros((_LANES,), tl.uint64)
    s1 = tl.zeros((_LANES,), tl.uint64)
    s2 = tl.zeros((_LANES,), tl.uint64)
    whole = count // _TILE * _TILE
    # a mask would break the wide reads up, so that only the last tile has one
    for begin in range(0, whole, _TILE):
        position = start + (begin + tile).to(start.dtype)
        h, s1, s2 = _add(source + begin + tile, position, piece, None, h, s1, s2, False, levels)
    if whole < count:
        place = whole + tile
        position = start + place.to(start.dtype)
        h, s1, s2 = _add(source + place, position, piece, place < count, h, s1, s2, True, levels)
    row = out + tl.load(piece + 1) * 3
    tl.atomic_add(row, tl.sum(h, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(row + 1, tl.sum(s1, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(row + 2, tl.sum(s2, 0).to(tl.int64, bitcast=True), sem="relaxed")
