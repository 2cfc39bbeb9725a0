"""One process at a time: a lock file that names its owner, so that a dead one's is known."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sdc_guard.errors import UsageError
from sdc_guard.store.atomic import exclusive, publish_text_once

NAME: Final = "lock"
_TRIES: Final = 5


@dataclass(frozen=True)
class Owner:
    """Who holds a lock.

    Attributes:
        pid: process number.
        host: name of the machine.
        started: when the process started, in the machine's own count; "" where that is not
            known. A number that was given again to another process is told apart by it.
        since: seconds since the epoch.
    """

    pid: int
    host: str
    started: str
    since: float

    @classmethod
    def this(cls) -> Owner:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Owner:
        """A process of this machine."""
        return cls(pid, socket.gethostname(), _started(pid), time.time())

    @property
    def gone(self) -> bool:
        """Whether it certainly runs no more: only known of this machine."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # another user's
            pass
        if _stat(self.pid)[:1] == ["Z"]:  # ended, and whoever started it did not ask how
            return True
        started = _started(self.pid)
        return bool(self.started and started and self.started != started)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Owner | None]:
    """Hold the lock of a folder.

    Yields:
        the owner of a lock that was taken over because its process is gone; None without one.

    Raises:
        UsageError: another process holds it.
        OSError: the folder cannot be written.
    """
    path = folder / NAME
    own = Owner.this()
    stale = _take(path, own)
    try:
        yield stale
    finally:
        if _read(path) == own:
            path.unlink(missing_ok=True)


def _take(path: Path, own: Owner) -> Owner | None:
    stale: Owner | None = None
    text = json.dumps(asdict(own)) + "\n"
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            publish_text_once(path, text)
            return stale
        owner = _read(path)
        if owner is not None and not owner.gone:
            raise _held(path, owner)
        # two that both see a dead owner must not remove each other's new lock
        with exclusive(path.with_name(f".{NAME}.takeover")) as alone:
            if alone and path.exists() and _read(path) == owner:
                path.unlink()
                stale = owner or stale
        if not alone:
            time.sleep(0.05)
    raise _held(path, _read(path))


def _read(path: Path) -> Owner | None:
    """The owner; None if the file is gone or says nothing that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Owner(
            int(content["pid"]),
            str(content["host"]),
            str(content["started"]),
            float(content["since"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _held(path: Path, owner: Owner | None) -> UsageError:
    who = "another process"
    if owner is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(owner.since))
        who = f"process {owner.pid} on {owner.host}, since {when}"
    return UsageError(
        f"this session is in use by {who}",
        where=str(path),
        next_step="wait for it; if it is certainly gone, remove that file",
    )


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat (proc(5)), in clock ticks since boot; "" elsewhere."""
    found = _stat(pid)
    return found[19] if len(found) > 19 else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, which is the state; none elsewhere."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before may hold blanks
