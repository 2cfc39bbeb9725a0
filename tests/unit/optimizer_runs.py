"""Small trainings with an audit of every element at every step, and betas to draw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from hypothesis import strategies as st
from torch import nn

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.invariants import InvariantSensor
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.optimizer_audit import OptimizerAudit

Interference = Callable[[int, torch.optim.Optimizer], None]


class Net(nn.Module):
    """A classifier of token triples: rare rows of an embedding, norms, matrices, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.hidden = nn.Linear(24, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.norm(F.gelu(self.hidden(self.tokens(tokens).flatten(1))))
        out: torch.Tensor = self.head(x)
        return out


class Vector(nn.Module):
    """A parameter whose gradients the test sets."""

    def __init__(self, *values: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))


class Watch:
    """An audit attached to an optimizer's steps, and all that it alerts of."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        layers = model_layers(model)
        self.audit = OptimizerAudit(layers, optimizer, **{"every": 1, **options})
        self.sensor = InvariantSensor({layer.id: layer.name for layer, _ in layers})
        self.alerts: list[Alert] = []
        self.looked = 0
        self.largest_ratio = 0.0
        self.inside: Callable[[], None] = lambda: None  # runs at the end of each step, before after
        self._steps = itertools.count()
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, *_: Any) -> None:
        self._step = next(self._steps)
        self.audit.before(self._step)

    def _after(self, *_: Any) -> None:
        self.inside()
        pending = self.audit.after(self._step)
        if pending is not None:
            rows = pending.rows.numpy()
            self.looked += len(rows)
            self.largest_ratio = max(self.largest_ratio, float(rows[:, -1].max()))
            self.alerts += self.sensor.judge(pending.step, pending.slices, rows)

    @property
    def detectors(self) -> set[str]:
        return {alert.detector for alert in self.alerts}


def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token triples, low numbers far more often than high ones."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        uniform = torch.rand(16, 3, generator=generator)
        tokens = (50 * uniform**3).long()
        yield tokens, tokens.sum(1) % 5


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    seed: int,
    scheduler: Any = None,
    after_each: Interference = lambda step, optimizer: None,
) -> None:
    """Train, calling `after_each` between two steps."""
    for step, (tokens, labels) in zip(range(steps), batches(seed), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).float(), labels).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after_each(step, optimizer)


def apply(model: Vector, optimizer: torch.optim.Optimizer, *gradient: float) -> None:
    """One step with a given gradient."""
    model.w.grad = torch.tensor(gradient, dtype=model.w.dtype).expand_as(model.w).clone()
    optimizer.step()


@st.composite
def betas(draw: st.DrawFn) -> tuple[float, float]:
    """Betas that bound something, with some distance from those that do not."""
    second = draw(st.floats(0.3, 0.9999))
    return draw(st.floats(0.0, min(0.99, 0.98 * math.sqrt(second)))), second
