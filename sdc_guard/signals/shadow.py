"""The shadow pass: the loss of a pinned batch, without a trace in the training.

Everything that a forward pass can change is put back: each module's own mode, buffers by value
and by identity, plain attributes (counters, caches), and the random generators of torch, numpy
and Python.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .batch import batch_digest, fold, pinned

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
        losses = torch.stack([self._loss_once(model) for _ in range(2)])
        return ShadowResult(losses, self.batch_hash, time.perf_counter() - started)

    def _loss_once(self, model: torch.nn.Module) -> torch.Tensor:
        # not the wrapper of DistributedDataParallel: its forward talks to the other ranks
        wrapped = getattr(model, "module", None)
        inner = wrapped if isinstance(wrapped, torch.nn.Module) else model
        with restored(inner), torch.no_grad():
            inner.eval()
            return self._loss_fn(inner, self._batch).detach().to(torch.float64)


@contextlib.contextmanager
def restored(model: torch.nn.Module) -> Iterator[None]:
    """Undo on leaving what the block changes in the model's modules and the generators."""
    kept = [_ModuleState(module) for module in model.modules()]
    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = _cuda_devices(model)
    on_devices = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        yield
    finally:
        for state in kept:
            state.restore()
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        for device, state_there in zip(devices, on_devices, strict=True):
            torch.cuda.set_rng_state(state_there, device)


class _ModuleState:
    """One module's attributes and buffers."""

    _MANAGED = ("_parameters", "_buffers", "_modules")

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._attributes = {k: v for k, v in vars(module).items() if k not in self._MANAGED}
        self._containers = {
            k: _copy(v) for k, v in self._attributes.items() if isinstance(v, (list, dict, set))
        }
        self._buffers = {
            name: (buffer, None if buffer is None else buffer.detach().clone())
            for name, buffer in module._buffers.items()
        }

    def restore(self) -> None:
        own = vars(self._module)
        for name in set(own) - set(self._attributes) - set(self._MANAGED):
            del own[name]
        own.update(self._attributes)
        for name, content in self._containers.items():
            _refill(own[name], content)
        buffers = self._module._buffers
        for name in set(buffers) - set(self._buffers):
            del buffers[name]
        for name, (buffer, value) in self._buffers.items():
            if buffer is not None and value is not None and not _same(buffer, value):
                buffer.copy_(value)
            buffers[name] = buffer


def _same(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    # on a device the comparison would have to wait for it, a copy does not
    return buffer.device.type == "cpu" and torch.equal(buffer, value)


def _copy(container: Any) -> Any:
    return container.copy()


def _refill(container: Any, content: Any) -> None:
    if _identical(container, content):
        return
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


def _identical(container: Any, content: Any) -> bool:
    # by identity: comparing values could meet a tensor, whose truth is not defined
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        return all(key in container and container[key] is content[key] for key in content)
    return all(a is b for a, b in zip(container, content, strict=True))


def _cuda_devices(model: torch.nn.Module) -> list[torch.device]:
    found = {p.device for p in model.parameters() if p.device.type == "cuda"}
    return sorted(found, key=str)
