"""Small trainings of many kinds, whose gradients do what a large model's do seldom.

Each is a healthy run of a few seconds: units that are off, tokens that a batch lacks, a batch of
one example, experts without tokens, losses near and below zero, sequences of varying length. What
it yields are the signals of its steps, as a guard measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sdc_guard.detect.step_signals import StepSignals

Loss = Callable[[], torch.Tensor]


class Recorded(NamedTuple):
    """A training's elements of each layer, and its steps as signals and loss."""

    numel: np.ndarray
    steps: list[tuple[StepSignals, float]]


class Experts(nn.Module):
    """Six experts, of which each example goes through one; unused ones have gradients of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.gate, self.out = nn.Linear(10, 16), nn.Linear(16, 6), nn.Linear(16, 5)
        self.experts = nn.ModuleList(relu_mlp(16, 24, 16) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inward(x)
        share = self.gate(h).softmax(-1)
        chosen = functional.one_hot(share.argmax(-1), 6) * share
        mixed = sum(
            chosen[:, i, None] * expert(h.where(chosen[:, i, None] > 0, 0.0))
            for i, expert in enumerate(self.experts)
        )
        out: torch.Tensor = self.out(h + mixed)
        return out


class Recurrent(nn.Module):
    """An embedding, an LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(30, 16), nn.Linear(24, 30)
        self.cell = nn.LSTM(16, 24, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.cell(self.tokens(x))[0])
        return out


def relu_mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU in between."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def classes(model: nn.Module, count: int) -> Loss:
    """Classes of a linear teacher, `count` examples a batch."""
    teacher = torch.randn(10, 5)

    def loss() -> torch.Tensor:
        x = torch.randn(count, 10)
        return functional.cross_entropy(model(x), (x @ teacher).argmax(-1))

    return loss


def hinge(model: nn.Module) -> Loss:
    """A margin that most examples keep in the end."""
    teacher = torch.randn(10)

    def loss() -> torch.Tensor:
        x = torch.randn(8, 10)
        return functional.relu(0.3 - model(x)[:, 0] * (x @ teacher).sign()).mean()

    return loss


def regression(model: nn.Module, count: int) -> Loss:
    """Squares, with noise."""
    teacher = torch.randn(3)

    def loss() -> torch.Tensor:
        x = torch.randn(count, 3)
        y = x @ teacher + 0.3 * torch.randn(count)
        return (model(x)[:, 0] - y).square().mean()

    return loss


def density(model: nn.Module) -> Loss:
    """The log-likelihood of a normal distribution, which falls below zero."""

    def loss() -> torch.Tensor:
        x = torch.randn(16, 4)
        mean, width = model(x).chunk(2, -1)
        y = x[:, :2] * x[:, 2:] + 0.1 * torch.randn(16, 2)
        return (width + ((y - mean) / width.exp()).square() / 2).mean()

    return loss


def tokens(model: nn.Module, count: int, longest: int = 1) -> Loss:
    """The successor of a token, or of each of a sequence of varying length."""

    def loss() -> torch.Tensor:
        length = int(torch.randint(1, longest + 1, ()))
        x = torch.randint(0, 30, (count, length))
        y = (x * 7 + torch.randint(0, 2, x.shape)) % 30
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return loss


def embedded() -> nn.Sequential:
    """An embedding below an MLP."""
    return nn.Sequential(nn.Embedding(30, 16), relu_mlp(16, 32, 30))


def _of(model: nn.Module, loss: Callable[..., Loss], *given: int) -> tuple[nn.Module, Loss]:
    return model, loss(model, *given)


KINDS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "mlp": lambda: _of(relu_mlp(10, 32, 32, 5), classes, 16),
    "mlp, one example": lambda: _of(relu_mlp(10, 32, 32, 5), classes, 1),
    "hinge": lambda: _of(relu_mlp(10, 32, 32, 1), hinge),
    "linear": lambda: _of(nn.Linear(3, 1), regression, 16),
    "linear, one example": lambda: _of(nn.Linear(3, 1), regression, 1),
    "density": lambda: _of(relu_mlp(4, 24, 4), density),
    "experts": lambda: _of(Experts(), classes, 16),
    "tokens, 8": lambda: _of(embedded(), tokens, 8),
    "tokens, 120": lambda: _of(embedded(), tokens, 120),
    "lstm": lambda: _of(Recurrent(), tokens, 4, 32),
}


def recorded(kind: str, seed: int, steps: int) -> Recorded:
    """Train one of `KINDS` with Adam, and keep the signals of its steps."""
    torch.manual_seed(seed)
    model, loss_of = KINDS[kind]()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        torch.autograd.backward(loss)
        found.append((signals_of(model), loss.item()))
        optimizer.step()
    return Recorded(np.array([p.numel() for p in model.parameters()]), found)


def signals_of(model: nn.Module) -> StepSignals:
    """Of the gradients as they are now."""
    rows = np.array([row for p in model.parameters() for row in _of_gradient(p.grad)])
    norms, most, zeros, bad = rows.reshape(-1, 4).T
    return StepSignals(norms, most, zeros.astype(np.int64), bad.astype(np.int64))


def _of_gradient(gradient: torch.Tensor | None) -> Iterator[tuple[float, float, int, int]]:
    if gradient is None:
        yield float("nan"), float("nan"), 0, 0
        return
    bad = int((~gradient.isfinite()).sum())
    yield gradient.norm().item(), gradient.abs().max().item(), int((gradient == 0).sum()), bad
