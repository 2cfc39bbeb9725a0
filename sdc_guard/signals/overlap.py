"""Digests of the state beside the backward, so that they cost the training little.

A tensor that is written to while it is read has a digest of neither; so it counts who may write
when. Parameters are what a script writes to between two steps, if only to put averages in their
place for an evaluation: those that a step left are digested at once by two threads, and the
training goes on when both are done. Moments are left to the second thread, which begins with them
then, unless to share them too takes next to nothing of a step. What the next step finds is read by
that thread during the last backward, so that it is done about when that ends, by the times of
earlier steps; in that time a script has no reason to write. Where one does (it moves the weights
between two backwards), the digest differs from what was left, and is taken again when the step
begins.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np
import torch

from ..detect.carried import Key
from . import beside
from .second_stream import SecondStream, on_one_device
from .shared_digest import SharedDigest
from .state import PendingDigests

LEAST: Final = 1 << 20  # bytes; of less, waking the thread takes as long as reading them
_RECENT: Final = 8  # steps whose times are known
_MARGIN: Final = 1.25  # beside a backward the memory is slower; and what is late is waited for
_AHEAD: Final = 0.001  # seconds
_AT_ONCE: Final = 0.02  # of a step that two threads may read together at its end

Tensors = dict[Key, torch.Tensor]


class Overlap:
    """When what is digested, and by whom.

    Args:
        trouble: called with a place and an exception for what goes wrong in the second thread.
    """

    def __init__(self, trouble: Callable[[str, BaseException], None]) -> None:
        self._trouble = trouble
        self._job: tuple[tuple[Key, ...], SharedDigest] | None = None
        self._left: SharedDigest | None = None
        self._stream = SecondStream()
        self._rest: deque[float] = deque(maxlen=_RECENT)  # from a step's last backward to the step
        self._took: deque[float] = deque(maxlen=_RECENT)  # seconds of work on one table
        self._computed = 0.0  # seconds of a core for one table
        self._expected = 0  # backwards of a step
        self.took = 0.0  # seconds of work on what was found last
        self._ended: float | None = None  # when the step did
        self._steps_took: deque[float] = deque(maxlen=_RECENT)
        self._shares, self._steps = 0.0, 0
        self._backward_began: float | None = None

    def left(self, tensors: Tensors, offsets: Mapping[int, Any]) -> SharedDigest | None:
        """Digests of what a step left, of the parameters by now; None where one thread does."""
        now = time.monotonic()
        if self._ended is not None:
            self._steps_took.append(now - self._ended)
        self._left, self._ended = None, now
        if not _worth_a_thread(tensors):
            return None
        first = None
        if self._computed / 2 > _AT_ONCE * _quantile(self._steps_took, 0.25):
            first = [place for place, (kind, _) in enumerate(tensors) if kind == "param"]
        job = SharedDigest(list(tensors.values()), _places(tensors, offsets), first)
        job.submit(time.monotonic()).finish_first()
        self._left = job
        return job

    def backward_begins(
        self, backwards: int, tensors: Callable[[], Tensors], offsets: Mapping[int, Any]
    ) -> None:
        """Have the state digested towards the end of this backward, if it is the step's last.

        Args:
            backwards: of this step, that ended before.
            tensors: gives what is to be digested.
            offsets: of the layers that are sharded.
        """
        self.cancel()
        if self._left is not None:
            self._finish(self._left)  # others may use the core, and have kept the thread waiting
        self._backward_began = time.monotonic()
        if backwards + 1 < self._expected or not self._rest:
            return
        found = tensors()
        if not _worth_a_thread(found):
            return
        job = SharedDigest(list(found.values()), _places(found, offsets))
        ahead = _MARGIN * _quantile(self._took, 0.75) + _AHEAD
        due = self._backward_began + max(0.0, _quantile(self._rest, 0.25) - ahead)
        self._job = tuple(found), job.submit(due)

    def most_of_backward(
        self, backwards: int, tensors: Callable[[], Tensors], offsets: Mapping[int, Any]
    ) -> None:
        """The same on a device, where the host's clock says nothing: its work is queued here.

        Not where a step has several backwards: what a script does between them, the device could
        not be asked about without waiting.
        """
        if backwards or self._expected != 1:
            return
        found = tensors()
        if on_one_device(found.values()):
            self._stream.begin(found, _places(found, offsets))

    def found(self, backwards: int, tensors: Tensors) -> PendingDigests | None:
        """What was digested during the backward, None if nothing was.

        Args:
            backwards: of this step.
            tensors: the state as it is now.
        """
        self._expected = backwards
        job, self._job = self._job, None
        left, self._left = self._left, None
        if left is not None:
            self._finish(left)
            self._took.append(left.seconds)
            self._computed = left.computed
        if self._backward_began is not None:
            self._rest.append(time.monotonic() - self._backward_began)
            self._backward_began = None
        if job is None:
            queued = self._stream.end(tensors)
            return queued if backwards == 1 else None
        keys, shared = job
        rows = self._finish(shared)
        self._took.append(shared.seconds)
        self.took = shared.seconds
        if rows is None or keys != tuple(tensors):
            return None
        if left is not None:
            self._learn_share(left, shared, tensors)
        return PendingDigests(keys, rows)

    @property
    def watched(self) -> float | None:
        """The share of the time between two steps that lies between a tensor's two readings.

        The mean over bytes and steps; None where nothing was overlapped.
        """
        return self._shares / self._steps if self._steps else None

    def _learn_share(self, left: SharedDigest, found: SharedDigest, tensors: Tensors) -> None:
        if left.read.shape != found.read.shape or self._ended is None:
            return
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors.values()]
        between = np.average(found.read[:, 0] - left.read[:, 1], weights=sizes)
        self._shares += float(between) / (time.monotonic() - self._ended)
        self._steps += 1

    def _finish(self, job: SharedDigest) -> torch.Tensor | None:
        try:
            return torch.from_numpy(job.finish())
        except Exception as error:  # noqa: BLE001 - because the state is digested again then
            self._trouble("digesting beside the training", error)
            return None

    def cancel(self) -> None:
        """Have nothing read any more."""
        job, self._job = self._job, None
        if job is not None:
            job[1].cancel()
        self._stream.drop()


def _quantile(values: Collection[float], q: float) -> float:
    return sorted(values)[int(q * len(values))] if values else 0.0


def _worth_a_thread(tensors: Tensors) -> bool:
    if not all(tensor.is_cpu for tensor in tensors.values()):
        return False
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return size >= LEAST and beside.core_is_free()


def _places(tensors: Tensors, offsets: Mapping[int, Any]) -> list[Any]:
    return [offsets.get(layer, 0) for _, layer in tensors]
