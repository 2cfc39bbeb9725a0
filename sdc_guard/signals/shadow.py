"""The shadow pass: the loss of a pinned batch, without a trace in the training.

Everything that a forward pass can change is put back, see `restoration`; what it does not see is
said there. The model's own hooks run in the pass as in any forward: what they change at modules
is put back, what they keep in closures, globals or files is not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .batch import batch_digest, fold, pinned
from .parameter_writes import ParameterWrites
from .restoration import ParameterWritten, restored
from .sharding import sharding_kept

LossFunction = Callable[[torch.nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class ShadowResult:
    """Two passes over the same batch.

    Attributes:
        losses: float64 of the exact values, shape (2,), still on their device.
        batch_hash: of the batch when it was pinned.
        batch: digests of it right after the two passes, int64 (tensors, 3), on their device; None
            without tensors.
        seconds: wall time that the training thread spent on it.
    """

    losses: torch.Tensor
    batch_hash: int | None
    batch: torch.Tensor | None
    seconds: float


class ShadowPass:
    """Evaluates a pinned batch twice; the two losses of a sound device are equal bit for bit.

    Deterministic kernels provided: others differ on a sound device too.

    The first call makes one pass more, to learn which parameters the model's forward writes to;
    their values are put back from then on. A model that begins later to write to others is told
    once, by an error, and those writes stay.

    The pass runs without gradients, with every module's `training` False, without compiled code
    (compiling it for this would take seconds) and without autocast's cache of weights (the
    training would meet casts made here). An autocast region around the call stays in force. The
    wrappers of data parallelism and torch.compile are taken off. Where the model's forward
    communicates between ranks, as with fully_shard, every rank must make the same calls.

    Args:
        batch: copied, and hashed.
        loss_fn: called as loss_fn(model, batch); returns a scalar tensor. It must use the model
            that it is given, and not draw from a generator of its own.

    Attributes:
        newest: result; None before the first.
    """

    def __init__(self, batch: Any, loss_fn: LossFunction) -> None:
        self._batch = pinned(batch)
        self._loss_fn = loss_fn
        self._written: set[str] | None = None
        self.newest: ShadowResult | None = None
        # an optimizer whose step is compiled would have its hooks compiled as well
        self._uncompiled: Callable[[torch.nn.Module], ShadowResult]
        self._uncompiled = torch.compiler.disable(self._evaluate)  # type: ignore[no-untyped-call] # torch has no types here
        digest = batch_digest(self._batch)
        self.batch_hash = None if digest is None else fold(digest)

    def __call__(self, model: torch.nn.Module) -> ShadowResult:
        """Evaluate `model`, leaving it and the random generators as they were.

        Raises:
            UsageError: there is no such pass with this way of sharding.
            ParameterWritten: the forward wrote to a parameter that it had not written to before.
            Exception: whatever the loss function raises.
        """
        self.newest = result = self._uncompiled(model)
        return result

    def digest(self) -> torch.Tensor | None:
        """The digests of the pinned batch as it is now; see `batch_digest`."""
        return batch_digest(self._batch)

    def _evaluate(self, model: torch.nn.Module) -> ShadowResult:
        started = time.perf_counter()
        losses = self._losses(unwrapped(model))
        # after the passes: what changed it between the two is seen too
        batch = batch_digest(self._batch)
        return ShadowResult(losses, self.batch_hash, batch, time.perf_counter() - started)

    def _losses(self, model: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), _no_autocast_cache():
            if self._written is None:
                # not every operation runs while it is watched; the two passes tell what is wrong
                with contextlib.suppress(Exception):
                    self._written = self._learned(model)
            return torch.stack([self._loss_once(model) for _ in range(2)])

    def _learned(self, model: torch.nn.Module) -> set[str]:
        with restored(model), sharding_kept(model), ParameterWrites(model) as writes:
            self._loss(model)
        return set(writes.names)

    def _loss_once(self, model: torch.nn.Module) -> torch.Tensor:
        known = self._written or set()
        try:
            with restored(model, known), sharding_kept(model):
                return self._loss(model)
        except ParameterWritten as error:
            self._written = known.union(error.names)
            raise

    def _loss(self, model: torch.nn.Module) -> torch.Tensor:
        for module in model.modules():
            # not eval(): some classes rewrite their weights in it, and would not write back
            module.training = False
        # a copy each time: the loss function may take the batch apart
        return self._loss_fn(model, pinned(self._batch)).detach().to(torch.float64)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model without the wrappers of data parallelism and torch.compile, in any order.

    The forward of the first talks to other ranks; the second would compile the pass.
    """
    while True:
        if isinstance(model, (DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment] # because never None
        else:
            return model


@contextlib.contextmanager
def _no_autocast_cache() -> Iterator[None]:
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
