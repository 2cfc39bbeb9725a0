"""Reading large gradients in a thread of its own, while the backward goes on.

One read of all gradients takes about a hundredth of a step from the memory alone. Where torch
leaves a core free, that core does it. The thread is this process's only one, and reads: what it
reads nobody may write to before `wait` returns.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from .fused_cpu import sums_of_one

LARGE = 1 << 20  # bytes; of less, waiting for it takes as long as reading it
TOGETHER = 1 << 23  # bytes that are handed over at once: to wake a thread takes 50 µs


class Reading:
    """What one backward has handed over; used by one thread at a time.

    What goes wrong while reading is raised by `wait`.
    """

    def __init__(self) -> None:
        self.trouble: Exception | None = None

    def read(self, gradients: dict[int, torch.Tensor], table: NDArray[np.float64]) -> None:
        """Have what `sums_of_one` does done, by the time that `wait` returns.

        Args:
            gradients: by row of the table; float32, contiguous, on the CPU; kept until they are
                read.
            table: float64, shape (at least the largest row + 1, 5).
        """
        _reader().jobs.put((self, gradients, table))

    def wait(self) -> None:
        """Wait until all that was handed over is read.

        Raises:
            Exception: what went wrong with one of them.
        """
        # an event of its own: another thread's answer, or one to a wait that was interrupted,
        # says nothing about these
        done = threading.Event()
        _reader().jobs.put(done)
        done.wait()
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble


_Job = tuple[Reading, dict[int, torch.Tensor], NDArray[np.float64]]


class _Reader:
    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job | threading.Event] = SimpleQueue()
        threading.Thread(target=self._serve, name="sdc-guard-reader", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job = self.jobs.get()
            if isinstance(job, threading.Event):
                job.set()
            else:
                _do(*job)
            del job  # the script may want to free the gradients


def _do(reading: Reading, gradients: dict[int, torch.Tensor], table: NDArray[np.float64]) -> None:
    try:
        for row, gradient in gradients.items():
            sums_of_one(gradient, table, row)
    except Exception as error:  # noqa: BLE001 - because it is told to who waits
        reading.trouble = error


class _Process:
    """This process's reader, if one was needed yet."""

    reader: _Reader | None = None
    lock = threading.Lock()


def core_is_free() -> bool:
    """Whether torch computes on fewer cores than this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return torch.get_num_threads() < cores


def _reader() -> _Reader:
    if _Process.reader is None:
        with _Process.lock:
            _Process.reader = _Process.reader or _Reader()
    return _Process.reader


def _forked() -> None:
    _Process.reader, _Process.lock = None, threading.Lock()  # its thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
