"""The folder of a cache: what lies in it, who uses what, and what may go.

    CACHE/.lock             held while entries are counted, published or deleted, and never longer
    CACHE/entries/KEY       a file's bytes; KEY is their xxh3-128 and their number
    CACHE/partial/KEY.TOKEN one that is being written, or was when its process died

Whoever reads an entry, or writes one, holds a lock on the file itself, which the system lets go
when a process ends in whatever way: so nothing in use is deleted, and what the dead left is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from ...errors import UsageError

_KEY: Final = re.compile(r"([0-9a-f]{32})-(\d{1,19})")
_LOCK: Final = ".lock"
_ENTRIES: Final = "entries"
_PARTIAL: Final = "partial"
_PIECE: Final = 8 << 20  # bytes read at once


@dataclass(frozen=True)
class Key:
    """By which an entry is known: what its bytes must be.

    Attributes:
        xxh3: xxh3-128 of them, in hexadecimal.
        bytes: how many.
    """

    xxh3: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.xxh3}-{self.bytes}"

    @classmethod
    def of_name(cls, name: str) -> Key | None:
        """From an entry's name; None for a file that is none."""
        found = _KEY.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]))


class Held:
    """An entry that nobody deletes as long as it is held. Close it, or use it with `with`.

    Attributes:
        key: of it.
        place: its path in the cache.
    """

    def __init__(self, key: Key, place: Path, descriptor: int) -> None:
        self.key, self.place, self._descriptor = key, place, descriptor

    @property
    def path(self) -> Path:
        """Where the very file that is held is read, whatever lies at its place by now."""
        own = Path(f"/proc/self/fd/{self._descriptor}")
        return own if own.exists() else self.place  # not every system has one

    @property
    def inode(self) -> int:
        """Of the file that is held."""
        return os.fstat(self._descriptor).st_ino

    def checksum(self) -> str:
        """xxh3-128 of the file that is held.

        Raises:
            OSError: it cannot be read.
        """
        state, at = xxhash.xxh3_128(), 0
        while piece := os.pread(self._descriptor, _PIECE, at):
            state.update(piece)
            at += len(piece)
        return state.hexdigest()

    def close(self) -> None:
        """Let it go."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked process has it open, too
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Room:
    """A file that is being written, whose bytes count already. Close it when it is published."""

    key: Key
    path: Path
    descriptor: int

    def close(self) -> None:
        """Let it go."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


@dataclass(frozen=True)
class Busy:
    """That another process, or thread, is writing an entry to this file."""

    path: Path

    def idle(self) -> float:
        """Seconds since it last wrote; 0 once it is done."""
        with contextlib.suppress(FileNotFoundError):
            return max(0.0, time.time() - self.path.stat().st_mtime)
        return 0.0


class Entries:
    """The entries of a folder.

    Args:
        folder: of the cache; made if it is missing.

    Raises:
        UsageError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries, self.partial = folder / _ENTRIES, folder / _PARTIAL
        try:
            for one in (self.entries, self.partial):
                one.mkdir(parents=True, exist_ok=True)
            (folder / _LOCK).touch()
        except OSError as error:
            raise UsageError(
                f"the cache cannot be used ({error.strerror})", where=str(folder),
                next_step="name a folder on a local disk",
            ) from None  # fmt: skip

    def used(self) -> int:
        """Bytes of all entries, and of those that are being written when they are complete."""
        with self._alone():
            return self._used()

    def hold(self, key: Key) -> Held | None:
        """An entry, held; None if there is none. Its bytes are not looked at."""
        path = self.entries / str(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            same = path.stat().st_ino == os.fstat(descriptor).st_ino  # it may be deleted by now
            if same:
                _used_now(descriptor)
        except OSError:
            same = False
        if not same:
            os.close(descriptor)
            return None
        return Held(key, path, descriptor)

    def drop(self, held: Held) -> None:
        """Delete an entry whose bytes are other ones, though others may hold it."""
        with self._alone(), contextlib.suppress(OSError):
            if held.place.stat().st_ino == held.inode:
                held.place.unlink()

    def room(self, key: Key, limit: int) -> Room | Held | Busy | None:
        """A file to write an entry to, after as many of the others were deleted as is needed.

        Those that were used longest ago go first, and none that is in use.

        Returns:
            the entry itself, if somebody was faster; Busy while somebody is. None if there is no
            room for it.

        Raises:
            OSError: the folder cannot be written.
        """
        if key.bytes > limit:
            return None
        with self._alone():
            if (there := self.hold(key)) is not None:
                return there
            for path, of in self._live().items():
                if of == key:
                    return Busy(path)
            if not self._made(limit - key.bytes):
                return None
            path = self.partial / f"{key}.{secrets.token_hex(6)}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Room(key, path, descriptor)

    def trim(self, limit: int) -> None:
        """Delete what is more than so many bytes, as far as it is not in use."""
        with self._alone():
            self._made(limit, partly=True)

    def publish(self, room: Room) -> Held:
        """Make what was written an entry, held.

        Raises:
            OSError: as the file system gave it.
        """
        path = self.entries / str(room.key)
        with self._alone():
            _used_now(room.descriptor)
            room.path.replace(path)
            fcntl.flock(room.descriptor, fcntl.LOCK_SH)  # the same file: it never was free
        return Held(room.key, path, room.descriptor)

    def give_up(self, room: Room) -> None:
        """Delete what was written."""
        with contextlib.suppress(OSError):
            room.path.unlink()
        room.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / _LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _made(self, most: int, *, partly: bool = False) -> bool:
        """Delete entries until no more than so many bytes are used; whether that was possible.

        Where it is not, nothing is deleted, unless `partly`.
        """
        used = self._used()
        if used <= most:
            return True
        listed = sorted(self._sizes(), key=lambda one: one[2])
        free = [(path, size, descriptor) for path, size, _ in listed
                if (descriptor := _to_oneself(path)) is not None]  # fmt: skip
        try:
            if used - sum(size for _, size, _ in free) > most and not partly:
                return False
            for path, size, _ in free:
                if used <= most:
                    break
                path.unlink()
                used -= size
            return used <= most
        finally:
            for _, _, descriptor in free:
                os.close(descriptor)

    def _used(self) -> int:
        live = sum(key.bytes for key in self._live().values())
        return live + sum(size for _, size, _ in self._sizes())

    def _sizes(self) -> Iterator[tuple[Path, int, int]]:
        """Of each entry: path, bytes, when it was used last."""
        for path in self.entries.iterdir():
            key = Key.of_name(path.name)
            if key is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                found = path.stat(follow_symlinks=False)
                yield path, max(found.st_size, key.bytes), found.st_mtime_ns

    def _live(self) -> dict[Path, Key]:
        """What is being written; what dead processes left is deleted."""
        found = {}
        for path in self.partial.iterdir():
            key = Key.of_name(path.name.partition(".")[0])
            if key is None:
                continue
            descriptor = _to_oneself(path)
            if descriptor is None:
                found[path] = key
                continue
            path.unlink(missing_ok=True)
            os.close(descriptor)
        return found


def _used_now(descriptor: int) -> None:
    now = time.time_ns()  # the system's own time of a change is coarser
    os.utime(descriptor, ns=(now, now))


def _to_oneself(path: Path) -> int | None:
    """A descriptor that holds a file alone; None where others hold it, or it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
