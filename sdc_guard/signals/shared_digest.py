"""Digests that two threads take together: the training's own and one that only reads.

The work lies in pieces in queues; whoever comes takes the next one. The reading thread may begin
at a set time; the thread of the training, when it needs the result, does what is left.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..digest import digest_rows

_PIECE = 1 << 21  # bytes: at the end one thread waits for the other no longer than for so many


class SharedDigest:
    """One table of digests; each of two parts of it is complete when it is finished.

    Nobody may write to the tensors of a part before it is finished, or all of it cancelled.

    Args:
        tensors: in host memory; kept until then, also where the script lets go of them.
        offsets: as in `digest_rows`.
        first: places of those that come first; all by default.

    Attributes:
        hurry: ends the reading thread's wait for the time to begin.
        seconds: that both threads worked on it, together.
        computed: seconds of those in which they had a core.
        read: when each tensor was read, float64 (tensors, 2): from and to, by time.monotonic().
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        offsets: Sequence[Any],
        first: Sequence[int] | None = None,
    ) -> None:
        # of its own: the script may give a parameter another memory while this one is read
        self._tensors = [tensor.detach() for tensor in tensors]
        self._offsets = offsets
        self._rows: NDArray[np.int64] = np.empty((len(tensors), 3), dtype=np.int64)
        chosen = range(len(tensors)) if first is None else first
        rest = sorted(set(range(len(tensors))) - set(chosen))
        self._parts = [_Part(_pieces(self._tensors, places)) for places in (chosen, rest)]
        self._lock = threading.Lock()
        self._trouble: Exception | None = None
        self.hurry = threading.Event()
        self.seconds = self.computed = 0.0
        self.read: NDArray[np.float64] = np.zeros((len(tensors), 2))

    def submit(self, due: float) -> SharedDigest:
        """Have the reading thread work on it from `due` on, by time.monotonic()."""
        _thread().jobs.put((self, due))
        return self

    @property
    def rows(self) -> torch.Tensor:
        """Where the digests are when it is finished, int64 (tensors, 3)."""
        return torch.from_numpy(self._rows)

    @property
    def done(self) -> bool:
        """Whether all of it is there."""
        return all(part.done.is_set() for part in self._parts)

    def finish_first(self) -> None:
        """Have the first part complete, and leave the second one to the other thread."""
        self._work(self._parts[0])
        self._parts[0].done.wait()

    def finish(self) -> NDArray[np.int64]:
        """All digests, int64 (tensors, 3); does and waits for what is left.

        Raises:
            Exception: what went wrong with a piece.
        """
        self.hurry.set()
        self.work()
        for part in self._parts:
            part.done.wait()
        self._tensors = []
        if self._trouble is not None:
            raise self._trouble
        return self._rows

    def cancel(self) -> None:
        """Nobody reads the tensors any more when this returns."""
        self.hurry.set()
        for part in self._parts:
            while part.take() is not None:
                self._ended(part)
            part.done.wait()
        self._tensors = []

    def work(self) -> None:
        """Take pieces while there are any."""
        for part in self._parts:
            self._work(part)

    def _work(self, part: _Part) -> None:
        while (places := part.take()) is not None:
            started, computed = time.monotonic(), time.thread_time()
            try:
                tensors = [self._tensors[place] for place in places]
                offsets = [self._offsets[place] for place in places]
                self._rows[places] = digest_rows(tensors, offsets=offsets).numpy()
            except Exception as error:  # noqa: BLE001 - because it is told to who waits
                self._trouble = error
            ended = time.monotonic()
            self.read[places] = started, ended
            self._ended(part, ended - started, time.thread_time() - computed)

    def _ended(self, part: _Part, seconds: float = 0.0, computed: float = 0.0) -> None:
        with self._lock:
            self.seconds += seconds
            self.computed += computed
            part.missing -= 1
            if not part.missing:
                part.done.set()


class _Part:
    def __init__(self, pieces: list[list[int]]) -> None:
        self._pieces = deque(pieces)
        self.missing = len(pieces)
        self.done = threading.Event()
        if not pieces:
            self.done.set()

    def take(self) -> list[int] | None:
        try:
            return self._pieces.popleft()
        except IndexError:
            return None


def _pieces(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[list[int]]:
    """Places of tensors that are read in one go, the largest first: the last ones end together."""
    sizes = {place: tensors[place].numel() * tensors[place].element_size() for place in places}
    pieces: list[list[int]] = []
    room = 0
    for place in sorted(places, key=lambda place: -sizes[place]):
        if sizes[place] > room or not pieces:
            pieces.append([])
            room = _PIECE
        pieces[-1].append(place)
        room -= sizes[place]
    return pieces


class _Thread:
    def __init__(self) -> None:
        self.jobs: SimpleQueue[tuple[SharedDigest, float]] = SimpleQueue()
        threading.Thread(target=self._serve, name="sdc-guard-digests", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job, due = self.jobs.get()
            job.hurry.wait(max(0.0, due - time.monotonic()))
            job.work()
            del job  # the script may want to free the tensors


class _Process:
    """This process's thread, if one was needed yet."""

    thread: _Thread | None = None
    lock = threading.Lock()


def _thread() -> _Thread:
    if _Process.thread is None:
        with _Process.lock:
            _Process.thread = _Process.thread or _Thread()
    return _Process.thread


def _forked() -> None:
    _Process.thread, _Process.lock = None, threading.Lock()  # its thread is the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
