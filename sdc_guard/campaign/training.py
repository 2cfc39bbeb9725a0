"""A training that a campaign repeats: all that decides its next step can be kept and put back.

One torch thread, on the CPU; deterministic for a seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import xxhash
from torch import nn

from ..guard import Guard

Batch = tuple[torch.Tensor, torch.Tensor]


class Data(Protocol):
    """Batches in an order fixed by a seed; `position` is all there is to go on from."""

    position: int

    def next(self) -> Batch:
        """The next batch."""
        ...


@dataclass
class Training:
    """Model, optimizer and data of one run.

    Attributes:
        loss_fn: the mean loss of a batch, a scalar tensor.
        clip: norm to which gradients are clipped before each step; None for not.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    loss_fn: Callable[[nn.Module, Any], torch.Tensor]
    clip: float | None = None

    def step(self, guard: Guard | None) -> float:
        """One step of training; returns its loss."""
        batch = self.data.next()
        loss = self.loss_fn(self.model, batch)
        torch.autograd.backward(loss)
        if guard is not None:
            guard.observe(loss, batch)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def modules_called(self) -> tuple[str, ...]:
        """Names of the modules that take part in a step; one is made to see it."""
        called: dict[str, None] = {}

        def watched(name: str) -> Callable[..., None]:
            return lambda *_: called.setdefault(name)

        named = self.model.named_modules()
        handles = [module.register_forward_hook(watched(name)) for name, module in named]
        self.step(None)
        for handle in handles:
            handle.remove()
        return tuple(called)

    def state(self) -> dict[str, Any]:
        """What an exact resume needs, as `guard.checkpoint` takes it; shares memory with it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "position": self.data.position,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a copy of what `state` gave."""
        saved = copy.deepcopy(state)  # an optimizer keeps the tensors that it is given
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        self.data.position = saved["position"]

    def hashes(self) -> dict[str, str]:
        """XXH3-128 of the bytes of each tensor of the state, by its place.

        Another function than the guard's digest on purpose: what is true is not asked of what is
        on trial.
        """
        found = {"position": str(self.data.position), "rng": _hash(torch.get_rng_state())}
        for name, tensor in self.model.state_dict().items():
            found[f"model.{name}"] = _hash(tensor)
        for number, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                plain = isinstance(value, torch.Tensor)
                found[f"optimizer.{number}.{name}"] = _hash(value) if plain else repr(value)
        return found


def build(model: str, seed: int) -> Training:
    """A new training of one of plan.MODELS, seeded; torch's global generator is seeded, too.

    Raises:
        UsageError: what the model needs is not installed.
    """
    if model == "gpt":
        from .gpt import gpt

        return gpt(seed)
    from .convnet import convnet

    return convnet(seed)


def _hash(tensor: torch.Tensor) -> str:
    if not tensor.numel():
        return ""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_128_hexdigest(flat.numpy().data)
