"""Memory to read files into, used again: a fresh page costs about as much as reading it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

# of one read: large enough that calls cost nothing, small enough that a processor's cache still
# holds the bytes when they are summed up
PIECE: Final = 1 << 20
_MOST_KEPT: Final = 4  # a thread rarely reads two files at the same time


class _Kept(threading.local):
    """What the calling thread has handed back; freed when it ends."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []


_KEPT: Final = _Kept()


@contextmanager
def reused_buffer() -> Iterator[memoryview]:
    """PIECE bytes with anything in them, for the calling thread alone until the block ends."""
    kept = _KEPT.buffers
    buffer = kept.pop() if kept else memoryview(bytearray(PIECE))
    try:
        yield buffer
    finally:
        if len(kept) < _MOST_KEPT:
            kept.append(buffer)


def fresh_buffer(size: int) -> memoryview:
    """Writable bytes with anything in them; large ones in large pages where the system has them."""
    return memoryview(np.empty(size, np.uint8))
