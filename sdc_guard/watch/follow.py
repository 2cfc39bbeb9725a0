"""Many runs followed at once, each read again only when something was published in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import RunNotFound, SdcGuardError, UsageError
from ..store.reader import RunReader
from ..store.ring import left_rings
from .status import RunStatus, aged, status_of, unread

RENEW_AFTER = 300  # refreshes; a reader remembers each file that it ever checked

_Mark = tuple[int | None, ...]


class Following:
    """The status of runs, again and again.

    Args:
        folders: runs, or folders that hold runs, directly or one folder deeper. What is not there
            yet is waited for; runs that appear later are found.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [folder.absolute() for folder in folders]
        self._followed: dict[Path, _Followed] = {}

    def look(self, now: float) -> list[RunStatus]:
        """All runs as they are now, in the order of the folders and of their names.

        Args:
            now: seconds since the epoch.
        """
        runs = list(dict.fromkeys(run for folder in self._folders for run in runs_in(folder)))
        for gone in self._followed.keys() - set(runs):
            self._followed.pop(gone).close()
        return [self._followed.setdefault(run, _Followed(run)).look(now) for run in runs]

    def close(self) -> None:
        """Release the runs."""
        for followed in self._followed.values():
            followed.close()
        self._followed.clear()


def runs_in(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a run or holds none, else the runs in it."""
    if _changed(folder / "run.json") is not None:
        yield folder
        return
    found = [path.parent for path in sorted(folder.glob("*/run.json"))]
    # the optimizers of one training, or the runs of one person
    found += [
        path.parent
        for path in sorted(folder.glob("*/*/run.json"))
        if path.parent.parent not in found
    ]
    yield from sorted(found) or [folder]


class _Followed:
    """One run; its reader is open only while it records."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._reader: RunReader | None = None
        self._refreshes = 0
        self._mark: _Mark | None = None
        self._status: RunStatus | None = None

    def look(self, now: float) -> RunStatus:
        mark = _mark(self._run)  # before reading: what comes meanwhile is read the next time
        if self._status is None or mark != self._mark:
            self._status = self._read(now)
            self._mark = mark
        self._status = aged(self._status, now)
        if self._status.state != "recording" or self._refreshes >= RENEW_AFTER:
            self.close()
        return self._status

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self._refreshes = None, 0

    def _read(self, now: float) -> RunStatus:
        try:
            if self._reader is None:
                self._reader = RunReader(self._run)
            else:
                self._reader.refresh()
            self._refreshes += 1
            return status_of(self._reader, now)
        except RunNotFound as error:
            return unread(self._run, "waiting", error)
        except SdcGuardError as error:
            return unread(self._run, "damaged", error)
        except OSError as error:
            return unread(self._run, "damaged", UsageError(error.strerror or str(error)))


def _mark(run: Path) -> _Mark:
    """Changes when anything is published in a run: files only come into folders, or go."""
    folders = sorted((run / "trace").glob("*/rank=*"))
    left = left_rings(run)  # of killed processes
    return tuple(_changed(path) for path in (run / "run.json", *folders, *left))


def _changed(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None
