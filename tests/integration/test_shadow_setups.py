"""Training with a shadow pass at every step ends in the bits of training without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import (
    SETUPS,
    STEPS,
    Attach,
    Autocast,
    different,
    loss_fn,
    naive_passes,
    shadow_batch,
    train,
)
from torch import nn

from sdc_guard import Guard, RunReader


def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Attaches nothing."""


def guarded(run: Path, every: int = 1) -> tuple[Attach, list[Guard]]:
    """Attaches a guard with a shadow pass, and where that guard will be."""
    made: list[Guard] = []

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> Guard:
        shadow = (shadow_batch(), loss_fn)
        made.append(
            Guard(model, optimizer, run=run, shadow=shadow, shadow_every=every, policy="record")
        )
        return made[0]

    return attach, made


def shadow_losses(run: Path) -> list[tuple[float, float]]:
    with RunReader(run) as reader:
        return reader.rows("SELECT loss, repeat_loss FROM shadow ORDER BY step")


def same_with_and_without(
    run: Path, train: Callable[[Attach], dict[str, Any]], every: int = 1
) -> None:
    without = train(nothing)
    attach, guards = guarded(run, every)
    assert different(train(attach), without) == []
    assert guards[0].health.last_error == ""
    losses = shadow_losses(run)
    assert len(losses) == -(-STEPS // every)
    assert all(first == second for first, second in losses)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", SETUPS)
def test_setups_train_to_the_same_bits(name: str, every: int, tmp_path: Path) -> None:
    same_with_and_without(tmp_path / "run", partial(train, SETUPS[name]), every)


def region(cache: bool | None = None) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache)


@pytest.mark.parametrize("name", SETUPS)
def test_setups_that_step_inside_of_autocast(name: str, tmp_path: Path) -> None:
    same_with_and_without(tmp_path / "run", partial(train, SETUPS[name], region=region))


def test_setups_with_one_autocast_region_around_the_whole_training(tmp_path: Path) -> None:
    def whole(attach: Attach) -> dict[str, Any]:
        with region():  # its cache lives as long: what the pass cached would be trained with
            return train(Autocast, attach)

    same_with_and_without(tmp_path / "run", whole)
    assert all(different(whole(naive), whole(nothing)) for naive in naive_passes())


def test_setups_with_a_hook_that_needs_gradients_train_on_without_a_pass(tmp_path: Path) -> None:
    def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: None)

    def make() -> nn.Module:
        model = SETUPS["averages"]()
        model.linear.register_forward_hook(hook)  # fails after the model has begun to write
        return model

    attach, guards = guarded(tmp_path / "run")
    assert different(train(make, attach), train(make, nothing)) == []
    assert guards[0].health.errors == STEPS
    assert "tensor that doesn't require gradient" in guards[0].health.last_error
    assert shadow_losses(tmp_path / "run") == []


@pytest.mark.parametrize("name", [name for name in SETUPS if name != "autocast"])
def test_setups_are_changed_by_a_pass_that_is_not_careful(name: str) -> None:
    without = train(SETUPS[name], nothing)
    changed = [different(train(SETUPS[name], naive), without) for naive in naive_passes()]
    assert any(changed)
