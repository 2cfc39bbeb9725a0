"""A ring of frames in a file: what a process knew last, for whoever looks after it was killed.

The pages that `pwrite` fills belong to the system: they outlive the process by whatever it dies,
kill -9 and a segmentation fault included, and no other thread's progress is needed for it. They
do not outlive the machine; segments, which are synced, do.

A mapping of the file would do the same, but an access to a mapping of a full or vanished disk
ends the process with SIGBUS, where a write only fails.

    frame: magic (8 bytes) | sequence (u64) | length (u64) | xxh3_64 of the payload (u64)
           | payload in MessagePack, filled up to a multiple of 32 bytes

Numbers are little-endian; the checksum's seed is the sequence. A frame does not go over the end of
the file. The owner holds an exclusive flock on the file as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import xxhash

from .regular import open_regular

_NAME: Final = re.compile(r"rank=([0-9]{5,7})-[0-9a-f]+\.ring")
_MAGIC: Final = b"SDCRING1"
_HEAD: Final = struct.Struct("<8sQQQ")
_ALIGNED: Final = 32
_PACKED: Final = 1 << 14  # bytes; it grows with the frames
_open: weakref.WeakSet[Ring] = weakref.WeakSet()
SMALLEST: Final = 1 << 18
LARGEST: Final = 1 << 24


class Ring:
    """The newest frames of this process.

    Args:
        folder: where its file is made, with a name of its own.
        rank: whose frames these are.
        size: of the file in bytes; kept between SMALLEST and LARGEST.

    Attributes:
        path: the file.
        size: as it is.

    Raises:
        OSError: the file cannot be made, or its space not be reserved.
    """

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.size = min(max(size, SMALLEST), LARGEST) // _ALIGNED * _ALIGNED
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"rank={rank:05d}-{secrets.token_hex(6)}.ring"
        self._lock = threading.Lock()
        # one for all frames: each allocates a buffer of its own
        self._packer = msgpack.Packer(buf_size=_PACKED)
        self._next, self._sequence = 0, 0
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._file, 0, self.size)  # no frame may meet a full disk
        except BaseException:
            self.remove()
            raise
        _open.add(self)

    def put(self, content: Sequence[Any]) -> bool:
        """Add a frame over the oldest ones; False if it is larger than a quarter of the ring.

        Raises:
            TypeError, ValueError, OverflowError: MessagePack has no such values.
            OSError: the file cannot be written, or was removed by this object.
        """
        with self._lock:
            payload = self._packer.pack(content)
            if _HEAD.size + len(payload) > self.size // 4:
                return False
            frame = framed(self._sequence, payload)
            if self._next + len(frame) > self.size:
                self._next = 0
            os.pwrite(self._file, frame, self._next)
            self._next += len(frame)
            self._sequence += 1
        return True

    def remove(self) -> None:
        """Delete the file: everything in it is kept elsewhere."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Let go of the file, for whoever looks next."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _leave_all() -> None:
    for ring in list(_open):
        ring.leave()


if hasattr(os, "register_at_fork"):
    # a data loader's worker that outlives its parent would hold the parent's lock
    os.register_at_fork(after_in_child=_leave_all)


def framed(sequence: int, payload: bytes) -> bytes:
    """A frame's bytes."""
    digest = xxhash.xxh3_64_intdigest(payload, seed=sequence)
    head = _HEAD.pack(_MAGIC, sequence, len(payload), digest)
    return b"".join((head, payload, bytes(-(len(head) + len(payload)) % _ALIGNED)))


def frames(content: bytes) -> list[bytes]:
    """The payloads of all whole frames in a ring's content, oldest first."""
    found: dict[int, bytes] = {}
    start = content.find(_MAGIC)
    while start >= 0:
        whole, end = _frame_at(content, start), start + 1
        if whole is not None:
            sequence, payload = whole
            found[sequence] = payload
            end = start + _HEAD.size + len(payload)  # what looks like a frame in it is none
        start = content.find(_MAGIC, end)
    return [found[sequence] for sequence in sorted(found)]


def went_round(content: bytes) -> bool:
    """Whether frames of a ring were written over; False where that cannot be seen."""
    first = _frame_at(content, 0)
    return first is not None and first[0] > 0


def _frame_at(content: bytes, start: int) -> tuple[int, bytes] | None:
    if start % _ALIGNED or start + _HEAD.size > len(content):
        return None
    _, sequence, length, digest = _HEAD.unpack_from(content, start)
    payload = content[start + _HEAD.size : start + _HEAD.size + length]
    if len(payload) != length or xxhash.xxh3_64_intdigest(payload, seed=sequence) != digest:
        return None
    return sequence, payload


def ring_folder(run: Path) -> Path:
    """Where a run's rings are."""
    return run / "trace" / ".ring"


def rings(run: Path) -> list[tuple[int, Path]]:
    """Rank and file of each ring of a run, those in use included."""
    found = []
    for path in sorted(ring_folder(run).glob("rank=*.ring")):
        if match := _NAME.fullmatch(path.name):
            found.append((int(match[1]), path))
    return found


@contextlib.contextmanager
def left_content(path: Path, *, alone: bool = False) -> Iterator[bytes | None]:
    """The content of a ring whose owner is gone; None of one in use, or of one that is gone too.

    Args:
        path: the ring's file.
        alone: keep others from it meanwhile, so that it can be deleted.
    """
    with _locked(path, alone=alone) as file:
        yield None if file is None else file.read()


def left_rings(run: Path) -> list[Path]:
    """The rings of a run whose owners are gone."""
    found = []
    for _, path in rings(run):
        with _locked(path, alone=False) as file:
            if file is not None:
                found.append(path)
    return found


@contextlib.contextmanager
def _locked(path: Path, *, alone: bool) -> Iterator[BinaryIO | None]:
    try:
        # to write: some network file systems want it so
        file = open_regular(path, most=LARGEST, write=alone)
    except OSError:
        yield None
        return
    with file:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            there = bool(os.fstat(file.fileno()).st_nlink)
        except OSError:
            there = False
        yield file if there else None
