"""The small training into which the self-test injects its faults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from ..detect.alert import Alert
from ..digest import digest_tensor
from ..guard import Guard
from ..store.health import Health

STEPS: Final = 78  # the sensor needs 64 steps of warm-up
FAULT: Final = 74  # the step that meets the fault
LAYER: Final = "0.weight"
# what would make a guard one of another run, or of several
_NOT_OURS = ("RANK", "WORLD_SIZE", "SDC_GUARD_RUN", "SDC_GUARD_CAPTURE")


@dataclass
class Parts:
    """What a fault can get at."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    run: Path
    guard: Guard | None = None

    @property
    def parameter(self) -> nn.Parameter:
        """The layer that faults go to."""
        return dict(self.model.named_parameters())[LAYER]


Fault = Callable[[Parts], None]  # called once, before the guard is attached
AtStep = Callable[[Parts, int], None]  # called before the forward of each step


@dataclass
class Trained:
    """What a training left.

    Attributes:
        alerts: in their order.
        health: of the guard.
        digests: of each parameter and moment, by name.
    """

    alerts: list[Alert] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    digests: dict[str, str] = field(default_factory=dict)

    def of(self, detector: str) -> list[Alert]:
        """Alerts of one detector."""
        return [alert for alert in self.alerts if alert.detector == detector]


def small_model() -> nn.Module:
    """Two layers, from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 4))


def batch_of(step: int) -> torch.Tensor:
    """Inputs of a step, shape (16, 12)."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(16, 12, generator=generator)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A scalar whose gradients keep their size over the steps."""
    target = batch[:, :4].sin() + batch[:, 4:8] * batch[:, 8:]
    loss: torch.Tensor = (model(batch) - target).square().mean()
    return loss


def train(
    run: Path | None,
    fault: Fault | None = None,
    at_step: AtStep | None = None,
    steps: int = STEPS,
    **options: Any,
) -> Trained:
    """Train with a guard, on the CPU.

    Args:
        run: the guard's folder; None for a training without one.
        fault: registers what injects.
        at_step: injects.
        **options: of the guard, beside those that make it watch everything at every step.
    """
    trained = Trained()
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = Parts(model, optimizer, run or Path())
    if fault is not None:
        fault(parts)
    with alone(), one_thread(), contextlib.ExitStack() as stack:
        if run is not None:
            every = {"digest_budget": None, "policy": "record", "probe_every": None}
            parts.guard = Guard(
                model, optimizer, run=run, on_alert=trained.alerts.append, **(every | options)
            )
            stack.callback(parts.guard.close)
            trained.health = parts.guard.health
        for step in range(steps):
            if at_step is not None:
                at_step(parts, step)
            batch = batch_of(step)
            loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call] # torch has no types here
            if parts.guard is not None:
                parts.guard.observe(loss, batch)
            optimizer.step()
            optimizer.zero_grad()
    trained.digests = digests_of(model, optimizer)
    return trained


def digests_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Of each parameter and each tensor of the optimizer's state, by name."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = _hex(parameter)
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                found[f"{name} {kind}"] = _hex(value)
    return found


def _hex(tensor: torch.Tensor) -> str:
    return f"{digest_tensor(tensor).h:016x}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes with one thread: for so little, more would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, guards are those of one process, whatever this process belongs to."""
    hidden = {name: os.environ.pop(name) for name in _NOT_OURS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
