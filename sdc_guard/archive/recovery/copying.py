"""Copying a file and hashing what is copied, by several threads: each byte is read once.

Reading, writing and hashing let other threads run. A file's pieces are hashed in order, as
xxh3-128 needs it, while others are under way.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import xxhash

from ...errors import CheckpointMismatch, CheckpointUnreadable, ReadFailed
from ..compare import OTHER_BYTES, other_size
from ..manifest import FileEntry
from ..regular_file import open_unbuffered

PIECE: Final = 4 << 20  # bytes read at once; so many per thread are in memory
NEXT_STEP: Final = "another checkpoint is needed"


class Stopped(Exception):
    """Another file's copy failed: this one is given up."""


@dataclass
class Stop:
    """Whether to give up; set by whoever fails first."""

    event: threading.Event

    def check(self) -> None:
        """Raise Stopped if it is set."""
        if self.event.is_set():
            raise Stopped


@contextlib.contextmanager
def stopped_at_end() -> Iterator[Stop]:
    """What threads look at; set when the block is left, so that Ctrl-C waits for no copy."""
    stop = Stop(threading.Event())
    try:
        yield stop
    finally:
        stop.event.set()


def copy_proven(
    source: Path, target: Path, entry: FileEntry, *, ahead: int = 1, stop: Stop | None = None
) -> None:
    """Copy a file to a new one, and compare what was read with its checksum; not synced.

    Args:
        source: of it.
        target: the new file.
        entry: the size and checksum that it must have; "" is none.
        ahead: pieces that are read and written at once.
        stop: looked at before each piece.

    Raises:
        CheckpointMismatch: the bytes are other ones; the target is there all the same.
        CheckpointUnreadable: there is no such file.
        ReadFailed: it cannot be read for a cause that is not in it.
        OSError: the target cannot be written.
        Stopped: another copy failed.
    """
    with target.open("xb", buffering=0) as written:
        copy_into(source, written.fileno(), entry, ahead=ahead, stop=stop)


def copy_into(
    source: Path, target: int, entry: FileEntry, *, ahead: int = 1, stop: Stop | None = None
) -> None:
    """The same into a descriptor.

    Raises: as `copy_proven`.
    """
    stop = stop or Stop(threading.Event())
    try:
        opened = open_unbuffered(source)
    except FileNotFoundError:
        raise CheckpointUnreadable(
            f"{entry.name}: missing", where=str(source), next_step=NEXT_STEP
        ) from None
    except OSError as error:
        raise _unread(entry, source, error) from error
    with opened:
        size = os.fstat(opened.fileno()).st_size
        if size != entry.bytes:
            what = f"{entry.name}: {other_size(size, entry.bytes)}"
            raise CheckpointMismatch(what, where=str(source), next_step=NEXT_STEP)
        found = _copied(opened.fileno(), target, size, ahead, stop, (entry, source))
    if entry.xxh3 and found != entry.xxh3:
        raise CheckpointMismatch(
            f"{entry.name}: {OTHER_BYTES}", where=str(source), next_step=NEXT_STEP
        )


def _copied(
    source: int, target: int, size: int, ahead: int, stop: Stop, named: tuple[FileEntry, Path]
) -> str:
    """The checksum of all bytes that were copied."""
    state = xxhash.xxh3_128()
    buffers: SimpleQueue[memoryview] = SimpleQueue()  # used again: fresh memory is slow to get
    for _ in range(min(ahead + 1, 1 + size // PIECE)):
        buffers.put(memoryview(bytearray(min(PIECE, size))))

    def one(first: int, buffer: memoryview) -> int:
        stop.check()
        count = _read(source, first, buffer[: min(PIECE, size - first)], named)
        _write(target, first, buffer[:count])
        return count

    places = range(0, size, PIECE)
    if ahead < 2 or len(places) < 2:
        buffer = buffers.get()
        for first in places:
            state.update(buffer[: one(first, buffer)])
        return state.hexdigest()
    with ThreadPoolExecutor(ahead) as pool:
        waiting: deque[tuple[memoryview, Future[int]]] = deque()

        def hashed() -> None:
            buffer, future = waiting.popleft()
            state.update(buffer[: future.result()])
            buffers.put(buffer)

        try:
            for first in places:
                if len(waiting) > ahead:
                    hashed()
                buffer = buffers.get()
                waiting.append((buffer, pool.submit(one, first, buffer)))
            while waiting:
                hashed()
        finally:
            for _, future in waiting:
                future.cancel()
    return state.hexdigest()


def _read(source: int, first: int, room: memoryview, named: tuple[FileEntry, Path]) -> int:
    """Fill it; how many bytes there were: fewer where the file ends before."""
    done = 0
    while done < len(room):
        try:
            count = os.preadv(source, [room[done:]], first + done)
        except OSError as error:
            raise _unread(*named, error) from error
        if not count:
            break
        done += count
    return done


def _write(target: int, first: int, left: memoryview) -> None:
    while left:
        count = os.pwrite(target, left, first)
        first, left = first + count, left[count:]


def _unread(entry: FileEntry, source: Path, error: OSError) -> ReadFailed:
    why = error.strerror or type(error).__name__
    return ReadFailed(
        f"{entry.name}: cannot be read: {why}", where=str(source), next_step="mend the cause"
    )
