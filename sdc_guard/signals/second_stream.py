"""Digests on a stream of their own of a CUDA device; the host waits for nothing.

The training's stream waits for them before the optimizer may write, on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..detect.carried import Key
from ..digest import digest_rows
from .kept_values import version
from .limits import capturing
from .state import PendingDigests

_Seen = list[tuple[int, tuple[int, ...]]]


class SecondStream:
    """At most one table of digests at a time."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._begun: tuple[tuple[Key, ...], torch.Tensor, torch.cuda.Event, _Seen] | None = None

    def begin(self, tensors: Mapping[Key, torch.Tensor], offsets: Sequence[Any]) -> None:
        """Queue the digests behind what is queued on the current stream by now.

        Args:
            tensors: on one device.
            offsets: as in `digest_rows`.
        """
        self.drop()
        if not tensors or capturing():
            return
        device = next(iter(tensors.values())).device
        current = torch.cuda.current_stream(device)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = _stream_on(device)
        stream.wait_event(_event_behind(current))
        with torch.cuda.stream(stream):
            rows = digest_rows(list(tensors.values()), offsets=offsets)
            rows.record_stream(current)  # where it is copied from
        for tensor in tensors.values():
            tensor.record_stream(stream)  # its memory is not given away while it is read
        self._begun = tuple(tensors), rows, _event_behind(stream), _seen(tensors)

    def end(self, tensors: Mapping[Key, torch.Tensor]) -> PendingDigests | None:
        """The digests; what is queued from now on comes after them.

        None if there are none, or if the script has written to a tensor since they were queued.

        Args:
            tensors: the state as it is now.
        """
        begun = self.drop()
        if begun is None:
            return None
        keys, rows, _, seen = begun
        if keys != tuple(tensors) or seen != _seen(tensors):
            return None
        return PendingDigests(keys, rows)

    def drop(self) -> Any:
        """Forget the digests. What is queued from now on comes after the reading all the same."""
        begun, self._begun = self._begun, None
        if begun is not None:
            torch.cuda.current_stream(begun[1].device).wait_event(begun[2])
        return begun


def _stream_on(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch has no types here
    return stream


def on_one_device(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether they are on one CUDA device."""
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and devices.pop().type == "cuda"


def _event_behind(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
    event.record(stream)
    return event


def _seen(tensors: Mapping[Key, torch.Tensor]) -> _Seen:
    """Memory and version of each: an operation on a tensor changes one of them, a fault neither."""
    return [(tensor.data_ptr(), version(tensor)) for tensor in tensors.values()]
