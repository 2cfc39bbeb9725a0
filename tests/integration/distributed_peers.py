"""Trainings in which one rank's gradients are unlike the others'. Each function is a scenario."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from distributed_training import Here, Training
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard
from sdc_guard.checks.peers.check import PeerCheck

Told = dict[str, Any]
EVERY, AT, BATCH_AT, STEPS = 10, 86, 91, 95  # windows, the two faults, all steps
FACTOR, BATCHS_FACTOR = 100.0, 1e8
LAYER, LAYERS_RANK, BATCHS_RANK = "8.weight", 2, 1


def net() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 24)]
    for _ in range(4):
        layers += [nn.Tanh(), nn.Linear(24, 24)]
    return nn.Sequential(*layers, nn.Linear(24, 3))


@dataclass
class Noisy(Training):
    """A loss that does not go to zero: gradients waver around one size.

    Attributes:
        disturb: by (step, rank), what becomes of the targets.
    """

    disturb: Callable[[int, int, torch.Tensor], torch.Tensor] = lambda _, __, x: x
    now: list[int] = field(default_factory=lambda: [0])

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if guard is not None:
            until_compared(guard)
        self.now[0] = step
        super()._pass(step, part, guard)

    def _loss(self, model: nn.Module, x: torch.Tensor, step: int, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(7_000_000 + 10 * step + rank)
        x = torch.randn(32, 6, generator=generator)
        target = torch.randn(32, 3, generator=generator)
        loss: torch.Tensor = (model(x) - self.disturb(step, rank, target)).square().mean()
        return loss


def until_compared(guard: Guard) -> None:
    """Wait for the exchange in the background: these steps take no time of their own."""
    (check,) = (one for one in guard._checks._checks if isinstance(one, PeerCheck))
    end = time.monotonic() + 5
    while time.monotonic() < end and check._thread.waiting > 1 and check._thread._done.empty():
        time.sleep(0.001)


def train(here: Here, *, factor: float = 1.0, **more: Any) -> Told:
    inner = net()
    options = more.pop("options", {})
    options = {"digest_budget": 0, "replicas_every": None, "probe_every": None} | options
    options["peers_every"] = EVERY
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    one = Noisy(here, model, optimizer, steps=STEPS, clip=1.0, options=options, **more)

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        wrong = (one.now[0], here.rank) == (AT, LAYERS_RANK)
        return gradient * factor if wrong else gradient

    inner.get_parameter(LAYER).register_hook(spoiled)
    return one()


def peers_sound(here: Here) -> Told:
    return train(here)


def _garbage(step: int, rank: int, target: torch.Tensor) -> torch.Tensor:
    return BATCHS_FACTOR * target if (step, rank) == (BATCH_AT, BATCHS_RANK) else target


def peers_faults(here: Here) -> Told:
    """A layer's gradient on one rank, and some steps later all that a batch gives on another."""
    return train(here, factor=FACTOR, disturb=_garbage)
