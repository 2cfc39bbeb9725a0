"""The strike ledger: what was found against devices, in one file that outlives the runs.

One JSON object a line, appended under a lock and synced, for people and programs alike:

strike    an audited step that its replays contradict, with its verdict
audits    how many steps were audited on a device since its line before
note      what is worth knowing and no strike: corrected memory errors, for one
cleared   the device was repaired or replaced: what came before does not count
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .detect.strikes import Entry
from .errors import UsageError
from .ledger_line import entry_of, lines_of
from .store.regular import open_regular

VERSION = 1
_LOCK_SECONDS = 2.0
_LARGEST = 256 << 20  # bytes that are read: a million entries and more


class Ledger:
    """Appends to a ledger.

    Args:
        path: of the file, made if missing; several machines may share it.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def try_to_open(self) -> None:
        """Make the file, empty, if it is missing. Raises as `strike` does, but for the lock."""
        os.close(self._open())

    def strike(self, device: str, run: str, step: int, verdict: str, **more: Any) -> None:
        """Add a strike against a device.

        Args:
            device: its serial, the same wherever it is built in.
            run: the run's folder.
            step: that was audited.
            verdict: of the ladder.
            **more: JSON values.

        Raises:
            OSError: the file cannot be written, is no regular file, or is locked for longer than
                two seconds.
        """
        self._append("strike", device, run=run, step=step, verdict=verdict, **more)

    def audits(self, device: str, run: str, count: int) -> None:
        """Add that `count` more steps were audited on a device. Raises as `strike` does."""
        self._append("audits", device, run=run, count=count)

    def note_memory_errors(self, device: str, run: str, counters: Mapping[str, int]) -> None:
        """Add counters of corrected memory errors, which are a note and never a strike.

        Raises as `strike` does.
        """
        self._append("note", device, run=run, counters=dict(counters))

    def clear(self, device: str, because: str) -> None:
        """Add that what came before does not count. Raises as `strike` does."""
        self._append("cleared", device, because=because)

    def _append(self, kind: str, device: str, **content: Any) -> None:
        now = self._clock()
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        line = {
            "version": VERSION,
            "kind": kind,
            "time": round(now, 3),
            "when": when,
            "host": socket.gethostname(),
            "device": device,
            **content,
        }
        file = self._open()
        try:
            _lock(file, self._path)
            text = json.dumps(line) + "\n"
            if not _ends_a_line(file):
                text = "\n" + text  # after the torn line of a writer that was killed
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)  # which lets go of the lock

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(self._path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "no regular file", str(self._path))
        return file


def read_ledger(path: Path) -> tuple[list[Entry], int]:
    """The entries in their order, and how many lines were damaged and passed over.

    Raises:
        UsageError: there is no such file, it cannot be read, it is none (a folder, a pipe, a
            device), or it is larger than 256 MiB.
    """
    entries, damaged = [], 0
    try:
        with open_regular(path, most=_LARGEST) as file:
            for line in lines_of(file):
                entry = entry_of(line)
                if entry is None:
                    damaged += 1
                else:
                    entries.append(entry)
    except OSError as error:
        raise UsageError(
            error.strerror or str(error),
            where=str(path),
            next_step="a ledger is a file that Guard(ledger=...) makes at its first entry",
        ) from None
    return entries, damaged


def _lock(file: int, path: Path) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(f"{path} is locked by another process") from None
            time.sleep(0.01)


def _ends_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"
