"""Searches that a page starts: the real command, in a process group of its own.

The page's server only looks on. A search goes on when the server ends, and whoever opens the page
then finds it again by its session's journal and process file. What it prints goes to a file
without a name: nothing of the run's folder is written but the session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forensics.journal import Session
from forensics.sessions.home import VARIABLE, Home
from forensics.sessions.lock import Owner
from forensics.sessions.process import STARTED_BY, Worker, worker_of
from sdc_guard.errors import UsageError
from sdc_guard.hosts import TOKEN_VARIABLE

BY: Final = "dashboard"
_TAIL: Final = 4_000  # bytes of what a search printed last
_HIDDEN: Final = (TOKEN_VARIABLE, VARIABLE)  # no training script's business; another folder
_ROOT: Final = str(Path(__file__).resolve().parents[2])
# A server in a shell's background ignores SIGINT, and so would whatever it starts.
_LAUNCH: Final = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@dataclass
class Started:
    """A search that this server started.

    Attributes:
        arguments: of `sdc-bisect`.
        owner: its process.
        code: its exit code; None while it runs.
        stopping: when it was asked to stop, in seconds since the epoch; None if it was not.
        begun: whether its session was seen.
    """

    arguments: tuple[str, ...]
    owner: Owner
    process: subprocess.Popen[bytes]
    printed: int  # descriptor of the file that it prints to; closed with this object
    stopping: float | None = None
    begun: bool = False

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.printed)

    @property
    def code(self) -> int | None:
        return self.process.returncode  # set by the thread that waits for it

    def said(self) -> str:
        """The last lines that it printed about its progress or its trouble."""
        start = max(os.fstat(self.printed).st_size - _TAIL, 0)
        text = os.pread(self.printed, _TAIL, start).decode(errors="replace")
        return text.partition("\n")[2] if start else text


@dataclass
class Launcher:
    """What one server has started, by run; for all of its pages."""

    _newest: dict[Path, Started] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def newest(self, run: Path) -> Started | None:
        """The search of a run that was started last."""
        return self._newest.get(run)

    def start(self, run: Path, arguments: Sequence[str]) -> Started:
        """Start `sdc-bisect` with these arguments, unless the run is searched already.

        Raises:
            UsageError: it is, or no process can be started.
        """
        with self._lock:
            found = self._newest.get(run)
            if found is not None and found.code is None:
                raise _taken(found.owner)
            for session in Session.in_folder(Home.of(run, None).folder):
                if (worker := worker_of(session.folder)) is not None:
                    raise _taken(worker.owner)
            self._newest[run] = _started(tuple(arguments))
            return self._newest[run]

    def stop(self, run: Path, worker: Worker | None) -> None:
        """Ask a search that a page started to end, as Ctrl-C does; a second time it has to.

        Args:
            run: what is searched.
            worker: of its session; None for what was started last.
        """
        mine = self._newest.get(run)
        owner = mine.owner if worker is None and mine is not None else None
        if worker is not None and may_stop(worker):
            owner = worker.owner
        if owner is None or owner.gone:
            return
        is_mine = mine is not None and mine.owner.pid == owner.pid
        again = mine is not None and is_mine and mine.stopping is not None
        if mine is not None and is_mine and mine.stopping is None:
            mine.stopping = time.time()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(owner.pid) == owner.pid:
                os.killpg(owner.pid, signal.SIGKILL if again else signal.SIGINT)


def may_stop(worker: Worker) -> bool:
    """Whether a page may end it: only what a page started, in a group of its own, here."""
    return worker.by == BY and worker.leads and worker.owner.host == Owner.this().host


def not_writable(run: Path) -> str:
    """Why no session can be kept in a run's folder; "" where one can."""
    folder = Home.of(run, None).folder
    place = folder if folder.is_dir() else run
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def _started(arguments: tuple[str, ...]) -> Started:
    environment = {name: text for name, text in os.environ.items() if name not in _HIDDEN}
    paths = (_ROOT, environment.get("PYTHONPATH", ""))
    environment |= {STARTED_BY: BY, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # -P: a folder named forensics where the server was started is not ours
    command = [sys.executable, "-I", "-S", "-c", _LAUNCH, "-P", "-m", "forensics.cli", *arguments]
    try:
        printed, name = tempfile.mkstemp()
        Path(name).unlink()
    except OSError as error:
        raise _cannot(error) from None
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the answer is in the session
            stderr=printed,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        os.close(printed)
        raise _cannot(error) from None
    # nobody else asks how it ended, and a process that nobody asks about stays as a zombie
    threading.Thread(target=process.wait, daemon=True).start()
    return Started(arguments, Owner.of(process.pid), process, printed)


def _cannot(error: OSError) -> UsageError:
    return UsageError(f"the search cannot be started ({error.strerror})")


def _taken(owner: Owner) -> UsageError:
    return UsageError(
        f"this run is being searched already, by process {owner.pid} on {owner.host}",
        next_step="wait for it, or stop it",
    )
