"""Room for a run: bytes and files of its file system, and memory that processes share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from .finding import NOTE, OK, PROBLEM, WARNING, Finding
from .mounts import nearest

SHARED_MEMORY: Final = Path("/dev/shm")
_RINGS: Final = 256 << 20  # bytes; a ring takes up to 16 MiB a rank, reserved when it starts
_LITTLE: Final = 5 << 30  # bytes; a run's trace of some days, and no large checkpoint
_FILES: Final = 1_000  # a run of a day publishes some hundreds of segments a rank
# what containers get when nobody asks for more: Docker's --shm-size
_CONTAINER: Final = 64 << 20
_WORKERS: Final = 256 << 20  # bytes; some batches of images of a data loader's workers


class Room(Protocol):
    """What of os.statvfs_result is looked at."""

    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bavail(self) -> int: ...
    @property
    def f_files(self) -> int: ...
    @property
    def f_favail(self) -> int: ...


Ask = Callable[[Path], Room]


def disk_space(path: Path, ask: Ask = os.statvfs) -> Iterator[Finding]:
    """Bytes and files that may still be written where a run lies, or will.

    Args:
        path: of a folder, that need not be there yet.
        ask: for the room of a file system.
    """
    room = ask(nearest(path))
    free, whole = room.f_frsize * room.f_bavail, room.f_frsize * room.f_blocks
    told = f"{size(free)} of {size(whole)} free"
    if free < _RINGS:
        yield Finding(PROBLEM, "disk space", told, "make room, or give another folder for the run")
    elif free < _LITTLE:
        yield Finding(WARNING, "disk space", told, "sdc-guard keep shows which checkpoints can go")
    else:
        yield Finding(OK, "disk space", told)
    if not room.f_files:  # file systems without a fixed number of files say 0
        return
    files = f"{room.f_favail:,} more files"
    if room.f_favail < _FILES:
        yield Finding(PROBLEM, "inodes", files, "sdc-guard compact RUN makes one file of many")
    else:
        yield Finding(OK, "inodes", files)


def shared_memory(path: Path = SHARED_MEMORY, ask: Ask = os.statvfs) -> Iterator[Finding]:
    """Whether data loaders' workers, NCCL and campaigns have the memory that they share.

    Args:
        path: of the file system in memory.
        ask: for its room.
    """
    try:
        room = ask(path)
    except OSError:
        yield Finding(NOTE, str(path), "not there: campaigns write to a temporary folder instead")
        return
    free, whole = room.f_frsize * room.f_bavail, room.f_frsize * room.f_blocks
    told = f"{size(free)} of {size(whole)} free"
    if whole <= _CONTAINER:
        yield Finding(
            WARNING, str(path),
            f"{told}: what a container gets by default; workers of data loaders and NCCL may die "
            "of a bus error", "start the container with --shm-size=8g or --ipc=host",
        )  # fmt: skip
    elif free < _WORKERS:
        yield Finding(WARNING, str(path), told, "remove what ended processes left there")
    else:
        yield Finding(OK, str(path), told)


def size(count: int) -> str:
    """Bytes in a unit that fits."""
    value, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, _ = value / 1024, units.pop(0)
    return f"{value:,.0f} {units[0]}" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"
