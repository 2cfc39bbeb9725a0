"""The values of one tensor on two ranks, compared without sending more of it than differs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...detect.replica_values import Compared, compare, words_of
from ..across_ranks import Exchange

_BLOCKS: Final = 1024
_LEAST: Final = 1024  # elements of a block
_MOST_BYTES: Final = 1 << 20  # of blocks that are sent: bounds what the store has to hold


def compare_values(
    exchange: Exchange, name: str, pair: tuple[int, int], mine: bytes | None, dtype: str
) -> Compared | None:
    """Compare a tensor of two ranks, in two rounds: which blocks differ, and these blocks.

    Called on both ranks, and on rank 0. Where more differs than may be sent, the blocks are taken
    from all over the tensor, and the number of elements that differ is that of those.

    Args:
        exchange: between the ranks.
        name: of the rounds.
        pair: the ranks.
        mine: the tensor's bytes, none if they cannot be had; None on a rank not of the pair.
        dtype: of the tensor.

    Returns:
        None where the values of one cannot be had, or are the same by now.
    """
    words = None if mine is None else words_of(mine, dtype)
    own = None if words is None else _sums(words)
    said = exchange.round(f"{name}/blocks", None if mine is None else own or b"", pair, _differing)
    told: dict[str, Any] = {"blocks": []} if said is None else json.loads(said)
    blocks: list[int] = told["blocks"]
    if not blocks:
        return None
    sent = b"" if words is None else _taken(words, blocks).tobytes()

    def answer(values: dict[int, bytes]) -> bytes:
        one, other = (words_of(values.get(rank, b""), dtype) for rank in pair)
        found = None if one is None or other is None else compare(one, other, dtype)
        if found is not None:
            found = _in_whole(found, blocks, told["count"])
        return json.dumps(None if found is None else asdict(found)).encode()

    said = exchange.round(f"{name}/values", None if mine is None else sent, pair, answer)
    values = None if said is None else json.loads(said)
    return None if values is None else Compared(**values)


def _in_whole(found: Compared, blocks: list[int], count: int) -> Compared:
    block, place = divmod(found.index, _size(count))
    return replace(found, of=count, index=blocks[block] * _size(count) + place)


def _size(count: int) -> int:
    """Elements of a block."""
    return max(-(-count // _BLOCKS), _LEAST)


def _sums(words: NDArray[Any]) -> bytes:
    """The tensor's elements and their width, and 8 bytes for each block."""
    size = _size(len(words))
    blocks = (words[start : start + size].tobytes() for start in range(0, len(words), size))
    sums = b"".join(hashlib.blake2b(block, digest_size=8).digest() for block in blocks)
    return len(words).to_bytes(8, "little") + bytes([words.itemsize]) + sums


def _differing(given: dict[int, bytes]) -> bytes:
    """How many elements there are, and the numbers of the blocks to be sent; none where the
    tensors are not of one size."""
    heads = {content[:9] for content in given.values()}
    if len(given) < 2 or len(heads) > 1 or b"" in heads:
        return b'{"blocks": []}'
    one, other = (np.frombuffer(content[9:], np.uint64) for content in given.values())
    (head,) = heads
    count = int.from_bytes(head[:8], "little")
    places = np.flatnonzero(one != other)
    most = max(_MOST_BYTES // (_size(count) * head[8]), 1)
    if len(places) > most:
        places = places[np.linspace(0, len(places) - 1, most).astype(int)]
    return json.dumps({"blocks": places.tolist(), "count": count}).encode()


def _taken(words: NDArray[Any], blocks: list[int]) -> NDArray[Any]:
    size = _size(len(words))
    return np.concatenate([words[block * size : (block + 1) * size] for block in blocks])
