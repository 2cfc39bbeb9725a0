"""Processes that run clean runs and trials, one after the other each.

A process that dies takes one task with it, and that is told; another process takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from .plan import Clean, Plan, Trial
from .rows import Rows

Task = Clean | Trial

# a trial takes seconds; one that takes this long hangs
TRIAL_SECONDS: Final = 600.0
_POLL = 1.0
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# one thread each, also of what reads these before torch does
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        rows: by table; None if it failed.
        reason: why it failed.
        seconds: it took; cpu: seconds of a core that it took.
        rss: bytes of the process's memory afterwards; None where that is not known.
        outside: whether it failed for a reason that every other would fail for, too.
    """

    task: Task
    rows: Rows | None
    reason: str
    seconds: float
    cpu: float | None
    rss: int | None
    outside: bool = False


class Pool:
    """Processes that are started when there is something to do, and kept for the next tasks.

    Args:
        plan: of the campaign.
        root: folder for temporary files, in which twins leave their windows.
        workers: how many processes.
        limit: seconds after which a trial is ended.
    """

    def __init__(self, plan: Plan, root: Path, workers: int, limit: float = TRIAL_SECONDS) -> None:
        self._plan, self._root, self._workers, self._limit = plan, root, workers, limit
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *self._busy):
            worker.end()

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Run tasks; the outcome of each comes as soon as it is finished."""
        left = iter(tasks)
        while True:
            while len(self._busy) < self._workers and (task := next(left, None)) is not None:
                self._give(task)
            if not self._busy:
                return
            news = [w.connection for w in self._busy] + [w.process.sentinel for w in self._busy]
            wait(news, _POLL)
            for worker in list(self._busy):
                if (outcome := worker.outcome(self._limit)) is not None:
                    self._put_back(worker)
                    yield outcome

    def _give(self, task: Task) -> None:
        while self._idle and not self._idle[-1].process.is_alive():
            self._idle.pop().end()  # somebody ended it between two tasks
        worker = self._idle.pop() if self._idle else _Worker(self._plan, self._root)
        worker.give(task)
        self._busy.append(worker)

    def _put_back(self, worker: _Worker) -> None:
        self._busy.remove(worker)
        if worker.process.is_alive():
            self._idle.append(worker)
        else:
            worker.end()


class _Worker:
    """One process, and the task that it has."""

    def __init__(self, plan: Plan, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, plan, root)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        with _one_thread():
            self.process.start()
        theirs.close()  # so that the end of either process is seen by the other

    def give(self, task: Task) -> None:
        self._task, self._since = task, time.monotonic()
        with contextlib.suppress(OSError):  # it is dead: `outcome` tells
            self.connection.send(task)

    def outcome(self, limit: float) -> Outcome | None:
        """What became of the task; None while it runs."""
        seconds = time.monotonic() - self._since
        alive = self.process.is_alive()  # asked before what it may have sent last
        try:
            if self.connection.poll():
                found: Outcome = self.connection.recv()
                return found
        except (EOFError, OSError):
            self.process.join()
            alive = False
        if not alive:
            return self._lost(f"the process ended with {self.process.exitcode}", seconds)
        if isinstance(self._task, Trial) and seconds > limit:
            self.process.kill()
            self.process.join()
            return self._lost(f"not finished after {limit:.0f} s", seconds)
        return None

    def end(self) -> None:
        """End the process; what it does now is lost."""
        self.connection.close()
        self.process.terminate()
        self.process.join()
        self.process.close()

    def _lost(self, reason: str, seconds: float) -> Outcome:
        return Outcome(self._task, None, reason, seconds, None, None)


class _one_thread:  # noqa: N801 - because it is used as a function
    """Has processes that are started meanwhile use one thread each."""

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in _THREADS}
        os.environ.update(dict.fromkeys(_THREADS, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def work(connection: Connection[Any, Any], plan: Plan, root: Path) -> None:
    """What a process does: tasks from the connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it is told, and ends it
    logging.getLogger("sdc_guard").setLevel(logging.CRITICAL)  # what the guard says is in the rows
    for name in [name for name in os.environ if name.startswith("SDC_GUARD_")]:
        del os.environ[name]  # meant for a training of the caller's
    while True:
        try:
            connection.send(run_task(connection.recv(), plan, root))
        except (EOFError, OSError):
            return  # nobody is there any more


def run_task(task: Task, plan: Plan, root: Path) -> Outcome:
    """Run a task in this process, with one thread; an exception is an outcome."""
    import torch

    from .clean import read_window, run_clean, run_twin
    from .trial import run_trial

    torch.set_num_threads(1)
    started, used, rows, reason, outside = time.monotonic(), time.process_time(), None, "", False
    try:
        if isinstance(task, Trial):
            window = read_window(root, task.model, task.seed, task.snapshot)
            rows = run_trial(task, window, root)
        elif task.purpose == "twin":
            rows = run_twin(task, plan, root)
        else:
            rows = run_clean(task, root)
    except Exception as error:  # noqa: BLE001 - because the other trials go on
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        outside = isinstance(error, OSError) and error.errno in _FULL
    seconds, cpu = time.monotonic() - started, time.process_time() - used
    return Outcome(task, rows, reason, seconds, cpu, _memory(), outside)


def _memory() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
