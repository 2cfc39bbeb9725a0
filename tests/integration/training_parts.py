"""A small training, what it should have recorded by hand, and what was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard import Guard, RunReader

Batch = tuple[torch.Tensor, torch.Tensor]
GUARDS: list[Guard] = []


def attach(model: nn.Module, optimizer: Any, run: Path, **options: Any) -> Guard:
    options.setdefault("policy", "record")
    guard = Guard(model, optimizer, run=run, **options)
    GUARDS.append(guard)
    return guard


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def batches(count: int, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(16, 6, generator=generator),
            torch.randint(0, 3, (16,), generator=generator),
        )
        for _ in range(count)
    ]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def norms(model: nn.Module) -> dict[str, float]:
    """Norm of each present gradient by the layer's name, in float64."""
    return {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def recorded(run: Path, scope: str = "local") -> dict[int, dict[str, float]]:
    """Norms by step and layer's name."""
    steps: dict[int, dict[str, float]] = {}
    with RunReader(run) as reader:
        query = "SELECT step, name, norm FROM layers JOIN layer_names USING (layer)"
        for step, name, norm in reader.rows(f"{query} WHERE scope = '{scope}' ORDER BY step, name"):
            assert name not in steps.setdefault(step, {}), "one row per layer and step"
            steps[step][name] = norm
    return steps


def rows(run: Path, query: str) -> list[Any]:
    with RunReader(run) as reader:
        return reader.rows(query)


def equal(found: dict[int, dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert sorted(found) == list(range(len(expected)))
    for step, layers in enumerate(expected):
        assert found[step] == pytest.approx(layers, rel=1e-6, nan_ok=True), f"step {step}"


def sound(guard: Guard) -> None:
    assert guard.health.errors == 0, guard.health.last_error
    assert guard.health.dropped == 0


def same_bits(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[Batch],
    guard: Guard | None = None,
    before_step: Callable[[], object] = lambda: None,
) -> list[dict[str, float]]:
    """Plain training; the gradients' norms before `before_step`."""
    expected = []
    for batch in data:
        loss = loss_of(model, batch)
        loss.backward()
        if guard:
            guard.observe(loss, batch)
        expected.append(norms(model))
        before_step()
        optimizer.step()
        optimizer.zero_grad()
    return expected
