"""Tables that tell a kernel where to read, on their device.

A kernel that reads many tensors at once gives every program a chunk of one of them, and finds it
in a table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

_KEPT: Final = 8 << 20  # bytes of tables that are kept


class Table(Protocol):
    """What is kept: its words lie on a device."""

    @property
    def words(self) -> torch.Tensor:
        """Of any content."""


T = TypeVar("T", bound=Table)


class KeptTables(Generic[T]):
    """The newest tables: tensors mostly lie where they lay a step ago.

    Args:
        kept: bytes.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._size = 0
        self._tables: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()  # each device has its own thread in a backward

    def get(self, device: torch.device, places: Hashable, make: Callable[[], T]) -> T:
        """The table for tensors at these places; made, and copied to the device, if need be."""
        # by the stream as well: memory that another one still reads must not be given back
        key = (device, _stream(device), places)
        with self._lock:
            found = self._tables.get(key)
            if found is not None:
                self._tables.move_to_end(key)
                return found
        made = make()
        with self._lock:
            if self._tables.setdefault(key, made) is made:
                self._size += made.words.nbytes
            while self._size > self._kept and len(self._tables) > 1:
                self._size -= self._tables.popitem(last=False)[1].words.nbytes
        return made


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def upload(words: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Words on a device, without waiting.

    Torch's allocator of pinned memory does not hand a buffer out again before the copies from it
    that were under way are done.
    """
    host = torch.from_numpy(words)
    if device.type == "cpu":
        return host
    pinned = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
    return pinned.copy_(host).to(device, non_blocking=True)
