"""A cache of checkpoints' files, that never gives other bytes than those asked for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...errors import SdcGuardError, UsageError
from ..manifest import FileEntry
from ..recovery.copying import Stop, copy_into
from .entries import Busy, Entries, Held, Key

_log = logging.getLogger("sdc_guard")
_PAUSE: Final = 0.05  # seconds between two looks at what another process writes
_PATIENCE: Final = 60.0  # seconds in which it must have written something


def _warn(line: str) -> None:
    _log.warning("SDC Guard: %s", line)


class Cache:
    """Files of checkpoints in a folder, several processes at once.

    Args:
        folder: on a disk near the devices; made if it is missing.
        size: bytes that its files have at most, those included that are being written.
        tell: called with a line for what goes wrong in it.

    Raises:
        UsageError: the folder cannot be used, or the size is none.
    """

    def __init__(self, folder: Path, size: int, tell: Callable[[str], None] = _warn) -> None:
        if type(size) is not int or size < 0:
            raise UsageError(f"the size of a cache is {size!r}", next_step="give it in bytes")
        self.entries, self.size, self.tell = Entries(folder), size, tell
        self._trouble: set[str] = set()
        with contextlib.suppress(OSError):  # what cannot be deleted is told when room is needed
            self.entries.trim(size)

    def hit(self, entry: FileEntry, *, proven: bool = True) -> Held | None:
        """What is there of a file, held; None if nothing is.

        Args:
            entry: of the file.
            proven: whether to compare its bytes. Who reads them with a proof of its own has no need
                of it, and calls `weed` where that fails.
        """
        if not entry.xxh3:
            return None
        held = self.entries.hold(Key(entry.xxh3, entry.bytes))
        if held is None or not proven or self._sound(held, entry):
            return held
        return None

    def fetch(
        self, entry: FileEntry, source: Path, *, proven: bool = True, stop: Stop | None = None,
        ahead: int = 1,
    ) -> Held | None:  # fmt: skip
        """A file's bytes: from the cache, or put into it now.

        Two processes that want the same file read it once.

        Returns:
            None where it goes past the cache: it has no checksum, there is no room, or the cache
            cannot be written.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: the source is not what it should be.
        """
        key = Key(entry.xxh3, entry.bytes)
        while entry.xxh3:
            if (held := self.hit(entry, proven=proven)) is not None:
                return held
            try:
                room = self.entries.room(key, self.size)
            except OSError as error:
                self._unwritten(error)
                return None
            if room is None or (isinstance(room, Busy) and room.idle() > _PATIENCE):
                return None
            if isinstance(room, Busy):
                if stop is not None:
                    stop.check()
                time.sleep(_PAUSE)
                continue
            if isinstance(room, Held):
                room.close()  # another was faster: looked at as any hit is
                continue
            try:
                copy_into(source, room.descriptor, entry, ahead=ahead, stop=stop)
                return self.entries.publish(room)
            except SdcGuardError:
                self.entries.give_up(room)
                raise
            except OSError as error:
                self.entries.give_up(room)
                self._unwritten(error)
                return None
            except BaseException:
                self.entries.give_up(room)
                raise
        return None

    def _unwritten(self, error: OSError) -> None:
        """Tell of what cannot be written, once for each cause."""
        line = f"the cache cannot be written ({error.strerror}): {self.entries.folder}"
        if line not in self._trouble:
            self._trouble.add(line)
            self.tell(line)

    def weed(self, held: Held, name: str) -> bool:
        """Delete an entry if its bytes are other ones; whether they were."""
        return not self._sound(held, FileEntry(name, held.key.bytes, held.key.xxh3))

    def drop(self, held: Held, name: str) -> None:
        """Delete an entry that was found to be other bytes, and let it go."""
        self.tell(f"{name}: the bytes in the cache are other ones; dropped, and read again")
        self.entries.drop(held)
        held.close()

    def _sound(self, held: Held, entry: FileEntry) -> bool:
        with contextlib.suppress(OSError):
            if held.checksum() == entry.xxh3:  # which the number of bytes goes into, too
                return True
        self.drop(held, entry.name)
        return False
