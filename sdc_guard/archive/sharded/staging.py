"""The copy of a rank's pieces in host memory, written from there while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .pieces import At


@dataclass(frozen=True)
class Staged:
    """What is written: tensors in host memory, contiguous; values by name."""

    tensors: dict[At, torch.Tensor]
    values: dict[str, Any]


class Stager:
    """Copies pieces to buffers that are used again at the next checkpoint.

    Fresh memory costs more than the copy into it does: the system clears each page first. What
    was staged holds until the next call.
    """

    def __init__(self) -> None:
        self._buffers: dict[At, torch.Tensor] = {}

    def stage(self, tensors: Mapping[At, torch.Tensor], values: Mapping[str, Any]) -> Staged:
        """Copy; it is complete when this returns, on every device.

        Raises:
            MemoryError, RuntimeError: as torch gave it.
        """
        kept = {at: self._buffer(at, tensor) for at, tensor in tensors.items()}
        with torch.no_grad():
            for at, tensor in tensors.items():
                kept[at].copy_(tensor, non_blocking=True)
        for device in {t.device for t in tensors.values() if not t.is_cpu}:
            torch.accelerator.synchronize(device)
        self._buffers = kept
        return Staged(kept, copy.deepcopy(dict(values)))

    def _buffer(self, at: At, tensor: torch.Tensor) -> torch.Tensor:
        held = self._buffers.get(at)
        if held is not None and (held.shape, held.dtype) == (tensor.shape, tensor.dtype):
            return held
        pinned = tensor.is_cuda
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
