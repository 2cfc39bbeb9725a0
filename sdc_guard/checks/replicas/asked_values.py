"""Tensors of one step, handed from the thread of the training to one that asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import torch

from ...detect.carried import Key
from ...digest.reference import words
from ...evidence import HostCopy

MOST_BYTES: Final = 64 << 20  # of a tensor that is copied to host memory


Wanted = tuple[Key, int | None]  # a tensor, and the element to give if the whole is too large


class _Request:
    def __init__(self, step: int, wanted: list[Wanted]) -> None:
        self.step, self.wanted = step, wanted
        self.copies: list[HostCopy | None] = [None] * len(wanted)
        self.met = threading.Event()


class AskedValues:
    """Keeps one request, and meets it at the end of its step.

    Attributes:
        step: the newest one that ended.
    """

    def __init__(self) -> None:
        self.step = -1
        self._request: _Request | None = None

    def step_ended(self, step: int, tensor_of: Callable[[Key], torch.Tensor | None]) -> None:
        """Copy what is asked for at this step, without waiting for its device."""
        self.step = step
        request = self._request
        if request is None or step < request.step or request.met.is_set():
            return
        try:
            for place, (key, index) in enumerate(request.wanted if step == request.step else ()):
                tensor = tensor_of(key)
                request.copies[place] = None if tensor is None else _copied(tensor, index)
        finally:
            request.met.set()

    def get(self, step: int, wanted: list[Wanted], patience: Callable[[], bool]) -> list[bytes]:
        """The bytes of tensors at the end of a step; called by another thread.

        Args:
            step: that has not ended yet.
            wanted: the tensors.
            patience: whether to go on waiting.

        Returns:
            for each its bytes; none if the step was over, the training did not come to it, or it
            is too large.
        """
        request = self._request = _Request(step, wanted)
        try:
            while not request.met.wait(0.02):
                if not patience():
                    return [b""] * len(wanted)
            return [b"" if copy is None else copy.array().tobytes() for copy in request.copies]
        finally:
            self._request = None


def patience_until(end: float, deadline: Callable[[], float | None]) -> Callable[[], bool]:
    """Whether neither `end` nor the deadline, if there is one, has passed; time.monotonic()."""
    return lambda: time.monotonic() < min(end, deadline() or end)


def _copied(tensor: torch.Tensor, index: int | None) -> HostCopy | None:
    whole = tensor.numel() * tensor.element_size() <= MOST_BYTES
    if not whole and index is None:
        return None
    row = words(tensor)
    part = row if whole or index is None else row[index : index + 1]
    return HostCopy(part.clone())
