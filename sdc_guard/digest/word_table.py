"""Where the words of many tensors lie, and which of the whole tensors they are, as a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from ..device_tables import upload
from .span import Span

CHUNK: Final = 1 << 15  # words; a multiple of every read's width
SHORT: Final = 1 << 31  # words of a piece whose positions fit into 32 bits
_VECTOR: Final = 16  # bytes that one thread reads at once, from addresses divisible by it


class Piece(NamedTuple):
    """Words that lie one after the other.

    Attributes:
        address: of the first one.
        size: bytes of each.
        length: how many.
        span: which they are, as `runs_of` makes it.
        row: of the result to which they belong.
    """

    address: int
    size: int
    length: int
    span: Span
    row: int


@dataclass(frozen=True)
class Launch:
    """Chunks that one launch of a kernel reads: `chunks` of them from `first` on.

    Attributes:
        size: bytes of a word.
        aligned: whether their addresses are divisible by _VECTOR.
        levels: of the runs.
        short: whether positions in a piece fit into 32 bits.
    """

    first: int
    chunks: int
    size: int
    aligned: bool
    levels: int
    short: bool


@dataclass(frozen=True)
class WordTable:
    """Chunks of at most CHUNK words.

    Attributes:
        words: int64, on the tensors' device: each chunk's address, each chunk's words, the
            position of each chunk's first word in its piece, each chunk's piece; and for each
            piece its first index, its row, and `depth` pairs of size and stride.
        chunks: their number.
        depth: levels of the runs, at most.
        launches: one for each kind of chunk that there is.
    """

    words: torch.Tensor
    chunks: int
    depth: int
    launches: tuple[Launch, ...]


def table(pieces: Sequence[Piece], device: torch.device) -> WordTable:
    """The table of words on a device; the copy to it is not waited for."""
    pieces = sorted(pieces, key=_kind)
    chunks = np.array([-(-piece.length // CHUNK) for piece in pieces], dtype=np.int64)
    depth = max((len(piece.span.sizes) for piece in pieces), default=1)
    columns = [
        np.array(values, dtype=np.int64)
        for values in zip(*((x.address, x.size, x.length) for x in pieces), strict=True)
    ]
    owner = np.repeat(np.arange(len(pieces)), chunks)
    start = (np.arange(len(owner)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * CHUNK
    address, size, length = (column[owner] for column in columns)
    words = np.concatenate(
        [
            address + start * size,
            np.minimum(CHUNK, length - start),
            start,
            owner,
            np.array([_row(piece, depth) for piece in pieces], dtype=np.int64).ravel(),
        ]
    )
    return WordTable(upload(words, device), len(owner), depth, _launches(pieces, chunks.tolist()))


def _kind(piece: Piece) -> tuple[int, bool, int, bool]:
    aligned = piece.address % _VECTOR == 0
    return piece.size, aligned, len(piece.span.sizes), piece.length < SHORT


def _row(piece: Piece, depth: int) -> list[int]:
    pairs = [number for level in zip(*piece.span[1:], strict=True) for number in level]
    return [piece.span.first, piece.row, *pairs, *[1] * (2 * depth - len(pairs))]


def _launches(pieces: Sequence[Piece], chunks: Sequence[int]) -> tuple[Launch, ...]:
    launches, first = [], 0
    counted = zip(pieces, chunks, strict=True)
    for kind, group in itertools.groupby(counted, key=lambda pair: _kind(pair[0])):
        many = sum(number for _, number in group)
        launches.append(Launch(first, many, *kind))
        first += many
    return tuple(launches)
