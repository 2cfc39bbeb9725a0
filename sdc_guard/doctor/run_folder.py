"""A run's folder: whether it can be written, what its processes left, and what its times say."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import UsageError
from .finding import NOTE, OK, PROBLEM, WARNING, Finding
from .mounts import nearest

_SKEW: Final = 60.0  # seconds that two clocks may differ without a word


def checked(run: Path) -> Path:
    """The run's folder.

    Raises:
        UsageError: there is something else than a folder at that place.
    """
    if run.exists() and not run.is_dir():
        raise UsageError("not a folder", where=str(run), next_step="give a run's folder")
    return run


def written(run: Path) -> Iterator[Finding]:
    """Whether a guard can write there, and where its ring and a ledger go."""
    there = nearest(run)
    told = str(run) if run.exists() else f"{run}, which is not there yet"
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            PROBLEM, "run", f"{there} cannot be written by this user",
            "the training would go on, and nothing be recorded: give another folder",
        )  # fmt: skip
        return
    yield Finding(OK, "run", told)
    yield Finding(
        OK, "ring and ledger",
        f"rows not yet published are kept in {run / 'trace' / '.ring'}; a ledger of strikes is "
        "where Guard(ledger=FILE) has it, best outside of the run",
    )  # fmt: skip


def left(run: Path) -> Iterator[Finding]:
    """Rows that killed processes left in their rings, and that a reader shows already."""
    from ..store.ring import left_rings

    if waiting := left_rings(run):
        yield Finding(
            NOTE, "ring", f"{len(waiting)} of processes that were killed",
            "nothing to do: readers show their rows, and the next start publishes them",
        )  # fmt: skip


def times(run: Path, now: float | None = None) -> Iterator[Finding]:
    """Whether this machine's clock and that of the run's file system agree.

    Args:
        run: the run's folder.
        now: seconds since 1970; the clock's by default.
    """
    now = time.time() if now is None else now
    newest = max(
        (path.lstat().st_mtime for path in (run / "run.json", *run.glob("trace/*/*/seg-*"))
         if path.exists()),
        default=now,
    )  # fmt: skip
    if newest > now + _SKEW:
        yield Finding(
            WARNING, "clock", f"a file of the run is {newest - now:,.0f} s newer than now",
            "have this machine, the others and the server of files keep one time",
        )  # fmt: skip
