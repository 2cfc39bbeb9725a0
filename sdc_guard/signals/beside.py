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

_Job = tuple[dict[int, torch.Tensor], NDArray[np.float64]]


class _Reader:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._trouble: BaseException | None = None
        threading.Thread(target=self._serve, name="sdc-guard-reader", daemon=True).start()

    def read(self, job: _Job) -> None:
        self._jobs.put(job)

    def wait(self) -> None:
        self._jobs.put(None)
        trouble = self._answers.get()
        if trouble is not None:
            raise trouble

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                trouble, self._trouble = self._trouble, None
                self._answers.put(trouble)
                continue
            try:
                gradients, table = job
                for row, gradient in gradients.items():
                    sums_of_one(gradient, table, row)
                del gradients, gradient  # the script may want to free them
            except Exception as error:  # noqa: BLE001 - because it is told to who waits
                self._trouble = error
            del job


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


def read(gradients: dict[int, torch.Tensor], table: NDArray[np.float64]) -> None:
    """Have what `sums_of_one` does done, by the time that `wait` returns.

    Args:
        gradients: by row of the table; float32, contiguous, on the CPU; kept until they are read.
        table: float64, shape (at least the largest row + 1, 5).
    """
    if _Process.reader is None:
        with _Process.lock:
            _Process.reader = _Process.reader or _Reader()
    _Process.reader.read((gradients, table))


def wait() -> None:
    """Wait until all that was handed over in this thread is read.

    Raises:
        Exception: what went wrong with one of them.
    """
    if _Process.reader is not None:
        _Process.reader.wait()


def _forked() -> None:
    _Process.reader, _Process.lock = None, threading.Lock()  # its thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
