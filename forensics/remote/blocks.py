"""Blocks of files behind a URL that were read: what is asked for again is not fetched again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

BLOCK: Final = 1 << 16  # bytes: the beginnings and ends that a look at a structure takes
_AHEAD: Final = 64  # blocks that are fetched at once, at the most, of what is read in its order
_KEPT: Final = 1 << 28  # bytes in memory

Fetch = Callable[[int, int], bytes]


class Blocks:
    """The newest blocks of all files of a store; can be used from several threads.

    What is read in its order is fetched in growing pieces, and each byte once; what is looked at
    here and there costs a block.

    Args:
        kept: bytes that are kept.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._size = 0
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._next: dict[str, tuple[int, int]] = {}  # block that would go on, and how many at once
        self._fetching: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def read(self, file: str, size: int, first: int, end: int, fetch: Fetch) -> bytes:
        """The bytes [first, end) of a file of `size` bytes.

        Args:
            fetch: gives a range of the file's bytes.

        Raises:
            OSError: the file has become shorter; or what `fetch` raises.
        """
        end = min(end, size)
        if first >= end:
            return b""
        wanted = range(first // BLOCK, (end - 1) // BLOCK + 1)
        have = self._having(file, wanted)
        if None in have.values():
            with self._of(file):  # who reads beside us may be fetching the same
                have = self._having(file, wanted)
                missing = [place for place, content in have.items() if content is None]
                if missing:
                    have |= self._fetched(file, size, range(missing[0], missing[-1] + 1), fetch)
        whole = b"".join(have[place] or b"" for place in wanted)
        start = wanted[0] * BLOCK
        return whole[first - start : end - start]

    def _fetched(self, file: str, size: int, wanted: range, fetch: Fetch) -> dict[int, bytes]:
        last = (size - 1) // BLOCK + 1
        stop = min(last, wanted[0] + max(len(wanted), self._ahead(file, wanted)))
        with self._lock:  # not beyond what is there already
            there = (at for at in range(wanted[-1] + 1, stop) if (file, at) in self._blocks)
            stop = next(there, stop)
        content = fetch(wanted[0] * BLOCK, min(size, stop * BLOCK))
        found = {
            place: content[(place - wanted[0]) * BLOCK : (place - wanted[0] + 1) * BLOCK]
            for place in range(wanted[0], stop)
        }
        self._put(file, found.items())
        with self._lock:
            self._next[file] = (stop, stop - wanted[0])
        return found

    def _of(self, file: str) -> threading.Lock:
        with self._lock:
            return self._fetching.setdefault(file, threading.Lock())

    def _having(self, file: str, wanted: range) -> dict[int, bytes | None]:
        return {place: self._get(file, place) for place in wanted}

    def _ahead(self, file: str, wanted: range) -> int:
        with self._lock:
            place, count = self._next.get(file, (0, 0))
        return min(2 * count, _AHEAD) if place == wanted[0] else 1

    def _get(self, file: str, place: int) -> bytes | None:
        with self._lock:
            content = self._blocks.get((file, place))
            if content is not None:
                self._blocks.move_to_end((file, place))
            return content

    def _put(self, file: str, found: Iterable[tuple[int, bytes]]) -> None:
        with self._lock:
            for place, content in found:
                before = self._blocks.pop((file, place), b"")
                self._blocks[file, place] = content
                self._size += len(content) - len(before)
            while self._size > self._kept:
                self._size -= len(self._blocks.popitem(last=False)[1])
