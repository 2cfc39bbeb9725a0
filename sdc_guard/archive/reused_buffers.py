"""Memory to read files into, used again: a fresh page costs about as much as reading it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

# of one read: large enough that calls cost next to nothing, small enough that a shared cache still
# holds the bytes when they are summed up
PIECE: Final = 4 << 20
_MOST_KEPT: Final = 8
_kept: Final[list[memoryview]] = []  # taking and adding one is atomic


@contextmanager
def reused_buffer() -> Iterator[memoryview]:
    """PIECE bytes with anything in them, for nobody else until the block ends."""
    try:
        buffer = _kept.pop()
    except IndexError:
        buffer = memoryview(bytearray(PIECE))
    try:
        yield buffer
    finally:
        if len(_kept) < _MOST_KEPT:
            _kept.append(buffer)


def fresh_buffer(size: int) -> memoryview:
    """Writable bytes with anything in them; large ones in large pages where the system has them."""
    return np.empty(size, np.uint8).data
