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
    """The gradients of one backward that are read beside it; used by one thread at a time.

    Attributes:
        trouble: what went wrong with one of them.
        gradients: by row, with their versions, what `finish` has to be called for.
    """

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.gradients: dict[int, tuple[torch.Tensor, int]] = {}
        self._rest: dict[int, torch.Tensor] = {}
        self._rest_bytes = 0

    def read(self, gradient: torch.Tensor, table: NDArray[np.float64], row: int) -> None:
        """Have what `sums_of_one` does done, by the time that `finish` returns.

        Args:
            gradient: float32, contiguous, on the CPU; kept until then.
            table: float64, shape (at least row + 1, 5).
            row: of the table.
        """
        self.gradients[row] = gradient, gradient._version
        self._rest[row] = gradient
        self._rest_bytes += 4 * gradient.numel()
        if self._rest_bytes >= TOGETHER:
            _reader().jobs.put((self, self._rest, table))
            self._rest, self._rest_bytes = {}, 0

    def finish(self, table: NDArray[np.float64]) -> dict[int, int]:
        """Wait until all is read.

        Returns:
            by row, the version of the gradient that was read.

        Raises:
            Exception: what went wrong with one of them.
        """
        # first: it may hold an older gradient of a row of the rest. An event of its own: another
        # thread's answer, or one to a wait that was interrupted, says nothing about these
        done = threading.Event()
        _reader().jobs.put(done)
        done.wait()
        gradients, self.gradients = self.gradients, {}
        rest, self._rest, self._rest_bytes = self._rest, {}, 0
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble
        for row, (gradient, version) in gradients.items():
            # written to meanwhile: added to, by an inner backward
            if row in rest or gradient._version != version:
                sums_of_one(gradient, table, row)
        return {row: gradient._version for row, (gradient, _) in gradients.items()}


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
