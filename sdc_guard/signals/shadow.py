"""The shadow pass: the loss of a pinned batch, without a trace in the training.

Everything that a forward pass can change is put back, see `restoration`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .batch import batch_digest, fold, pinned
from .restoration import restored

LossFunction = Callable[[torch.nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class ShadowResult:
    """Two passes over the same batch.

    Attributes:
        losses: float64 of the exact values, shape (2,), still on their device.
        batch_hash: of the pinned batch.
        seconds: wall time that the training thread spent on it.
    """

    losses: torch.Tensor
    batch_hash: int | None
    seconds: float


class ShadowPass:
    """Evaluates a pinned batch twice; the two losses of a sound device are equal bit for bit.

    Args:
        batch: copied, and hashed.
        loss_fn: called as loss_fn(model, batch); returns a scalar tensor.
    """

    def __init__(self, batch: Any, loss_fn: LossFunction) -> None:
        self._batch = pinned(batch)
        self._loss_fn = loss_fn
        digest = batch_digest(self._batch)
        self.batch_hash = None if digest is None else fold(digest)

    def __call__(self, model: torch.nn.Module) -> ShadowResult:
        """Evaluate `model`, leaving it and the random generators as they were."""
        started = time.perf_counter()
        inner = _inner(model)
        losses = torch.stack([self._loss_once(inner) for _ in range(2)])
        return ShadowResult(losses, self.batch_hash, time.perf_counter() - started)

    def _loss_once(self, model: torch.nn.Module) -> torch.Tensor:
        with restored(model), torch.no_grad():
            for module in model.modules():
                # not eval(): some classes rewrite their weights in it, and would not write back
                module.training = False
            # a copy each time: the loss function may take the batch apart
            return self._loss_fn(model, pinned(self._batch)).detach().to(torch.float64)


def _inner(model: torch.nn.Module) -> torch.nn.Module:
    """The model without the wrapper of data parallelism, whose forward talks to other ranks."""
    wrapped: torch.nn.Module = getattr(model, "_orig_mod", model)  # under torch.compile
    if isinstance(wrapped, (DistributedDataParallel, torch.nn.DataParallel)):
        inner: torch.nn.Module = wrapped.module
        return inner
    return model
