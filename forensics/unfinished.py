"""Going on with a session that was interrupted, kill -9 included."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sdc_guard.errors import SdcGuardError

from .journal import Session
from .safe_copies import FOLDER, is_kept, put_back
from .sessions.process import working_on

_BEGUN: Final = "verify"
_PATIENCE: Final = 10.0  # seconds that a replay whose verify was killed may take to end
_EVERY: Final = 0.1


@contextmanager
def session_for(
    parent: Path, inputs: dict[str, Any], tell: Callable[[str], None], *, fresh: bool = False
) -> Iterator[Session]:
    """The unfinished session with these inputs, or a new one; held by a lock for as long.

    Args:
        parent: the folder that sessions lie in; made if it is not there.
        inputs: all that its answer depends on and that is known before; JSON values only.
        tell: called with a line if a session is gone on with.
        fresh: always a new one.

    Raises:
        OSError: the folder cannot be written.
    """
    parent.mkdir(exist_ok=True)
    for session in [] if fresh else _newest_first(parent):
        if session.result() is not None or _begun_with(session) != inputs:
            continue
        lock = _locked(session, _PATIENCE)
        if lock is None:
            tell(f"session {session.folder.name} is being replayed by another process")
            continue
        tell(f"going on with session {session.folder.name}, which was interrupted")
        with os.fdopen(lock), _told(session):
            yield session
        return
    session = Session.under(parent)
    lock = _locked(session, 0)
    session.note(_BEGUN, inputs=inputs)
    with contextlib.nullcontext() if lock is None else os.fdopen(lock), _told(session):
        yield session  # without a lock on a file system that has none


def put_back_left(parent: Path, attempts: int, tell: Callable[[str], None]) -> None:
    """Put back what the replays of a verification that was killed wrote over.

    Args:
        parent: the folder that sessions lie in.
        attempts: how many the run has now. Where it has more than then, the training went on and
            may itself have saved there: then only the folder of the copies is told.
        tell: called with a line for what was put back.
    """
    for session in _newest_first(parent) if parent.is_dir() else []:
        if not is_kept(session.folder):
            continue
        lock = _locked(session, _PATIENCE)
        if lock is None:  # being replayed, as a rule, and put back by who does that
            tell(f"session {session.folder.name} has copies to put back, and is in use")
            continue
        with os.fdopen(lock):
            then = (_begun_with(session) or {}).get("attempts", attempts)
            if then == attempts:
                for line in put_back(session.folder):
                    tell(line)
            elif is_kept(session.folder):
                tell(
                    f"session {session.folder.name} was killed, and the run has gone on since: "
                    f"checkpoints as they were before its replay are in {session.folder / FOLDER}"
                )


@contextmanager
def _told(session: Session) -> Iterator[None]:
    """Say who replays, and keep why that ended without an answer."""
    with working_on(session.folder):
        try:
            yield
        except (SdcGuardError, KeyboardInterrupt) as error:
            with contextlib.suppress(OSError):
                session.stopped(error.what if isinstance(error, SdcGuardError) else "interrupted")
            raise


def _newest_first(parent: Path) -> list[Session]:
    numbered = (path for path in parent.iterdir() if path.name.isdigit() and path.is_dir())
    return [Session(path) for path in sorted(numbered, reverse=True)]


def _begun_with(session: Session) -> Any:
    try:
        with (session.folder / "journal.jsonl").open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return first.get("inputs") if first.get("event") == _BEGUN else None


def _locked(session: Session, patience: float) -> int | None:
    """A descriptor that holds the session's lock, to be inherited by a replay; None in vain."""
    descriptor = os.open(session.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    os.set_inheritable(descriptor, True)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= until:
                os.close(descriptor)
                return None
            time.sleep(_EVERY)
        else:
            return descriptor
