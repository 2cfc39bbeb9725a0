"""What a script does within its steps, and that they repeat, or are not compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stateful_setups import SETUPS, STEPS, WIDTH, loss_fn, seed_everything
from step_audits import Training, alerts, audits, reasons, with_copies
from torch import nn

from sdc_guard import Guard


@pytest.mark.parametrize("copies", [0, 1])
def test_a_batch_whose_gradients_are_dropped_does_not_count(tmp_path: Path, copies: int) -> None:
    training = Training(tmp_path, SETUPS["frozen batch norm"])
    if copies:
        with_copies(training, copies)
    calls = 0

    def drop(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if step >= 8 and calls % 3 != 1:  # the second and the third batch, of three
            training.optimizer.zero_grad()
        return loss_fn(model, x)

    training(parts=3, loss_of=drop)
    assert reasons(training.run) == []
    assert audits(training.run) == dict.fromkeys(range(1, STEPS), "sound")


@pytest.mark.parametrize("how", ["after the forward", "in place", "replaced"])
def test_gradients_changed_between_micro_batches_accuse_nobody(tmp_path: Path, how: str) -> None:
    training = Training(tmp_path)

    def change(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = loss_fn(model, x) if how == "after the forward" else None
        if step == 8 and how == "replaced":
            for parameter in model.parameters():
                parameter.grad = None if parameter.grad is None else parameter.grad * 0.5
        elif step == 8:
            training.optimizer.zero_grad(set_to_none=how != "in place")
        return loss_fn(model, x) if loss is None else loss

    training(parts=2, loss_of=change)
    assert alerts(training.run) == []
    assert audits(training.run)[8] == "not comparable"
    said = "wrote to the gradients" if how == "in place" else "of an earlier backward of this step"
    assert said in reasons(training.run)[0]


def test_a_counter_outside_of_the_model_is_put_back(tmp_path: Path) -> None:
    calls = 0

    def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_fn(model, x) / calls

    training = Training(tmp_path, audit=counted)(loss_of=lambda step, model, x: counted(model, x))
    assert calls == STEPS
    assert set(audits(training.run).values()) == {"sound"}


@pytest.mark.parametrize("loader_draws", [False, True])
def test_noise_that_the_loss_function_draws_first_is_drawn_again(
    tmp_path: Path, loader_draws: bool
) -> None:
    def noisy(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return loss_fn(model, x + torch.rand(()) * torch.randn_like(x))

    seed_everything(5)
    batches = torch.randn(STEPS, 2, 8, WIDTH)
    model = SETUPS["dropout"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=noisy, audit_rate=1.0
    ) as guard:
        for pair in batches:
            for x in pair:
                if loader_draws:
                    torch.rand(())
                loss = noisy(model, x)
                loss.backward()
                guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert alerts(tmp_path) == []
    if loader_draws:
        assert "something else drew" in reasons(tmp_path)[0]
    else:
        assert audits(tmp_path) == dict.fromkeys(range(1, STEPS), "sound")


def test_state_that_a_script_keeps_in_containers_is_put_back(tmp_path: Path) -> None:
    state = {"calls": 0}

    def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        return loss_fn(model, x) / state["calls"]

    training = Training(tmp_path, audit=counted)
    training(parts=2, loss_of=lambda step, model, x: counted(model, x))
    assert state == {"calls": 2 * STEPS}
    assert set(audits(training.run).values()) == {"sound"}


@pytest.mark.parametrize("to_none", [True, False])
def test_parameters_frozen_for_a_while_are_left_out_of_the_comparison(
    tmp_path: Path, to_none: bool
) -> None:
    seed_everything(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=loss_fn, audit_rate=1.0
    ) as guard:
        for step in range(18):
            if step in (6, 12):
                model[0].requires_grad_(step == 12)
            x = torch.randn(8, WIDTH)
            loss = loss_fn(model, x)
            loss.backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        assert guard.health.errors == 0
    assert reasons(tmp_path) == []
    assert audits(tmp_path) == dict.fromkeys(range(1, 18), "sound")


@pytest.mark.parametrize("parts", [1, 2])
def test_parameters_frozen_within_a_step_accuse_nobody(tmp_path: Path, parts: int) -> None:
    training = Training(tmp_path)
    calls = 0

    def freeze(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        frozen = next(model.parameters())
        frozen.requires_grad_(step != 8 or calls % 2 == 1 < parts)
        loss = loss_fn(model, x)
        frozen.requires_grad_(True)
        return loss

    training(parts=parts, loss_of=freeze)
    assert alerts(training.run) == []
    assert reasons(training.run) == ["the script froze or unfroze parameters during the step"]
