"""State that a loss function keeps outside of the model: replays leave no trace in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard import Guard, RunReader

STEPS, EVERY = 24, 5
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def base(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()  # type: ignore[no-any-return] # modules return anything


def weighed(loss: torch.Tensor, calls: int) -> torch.Tensor:
    """A loss that shows how often it was computed, at some steps more than at others."""
    return loss * (1 + 0.01 * calls + (calls % EVERY == 0))


class Centred(nn.Module):
    """A criterion with a running centre."""

    def __init__(self, *, rebound: bool) -> None:
        super().__init__()
        self.rebound = rebound
        self.register_buffer("centre", torch.zeros(1))

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        loss = (output - self.centre).square().mean()
        new = 0.9 * self.centre + 0.1 * output.detach().mean()
        if self.rebound:
            self.centre = new
        else:
            self.centre.copy_(new)
        return loss


class Trainer:
    def __init__(self) -> None:
        self.calls = 0

    def loss(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return weighed(base(model, x), self.calls)


class Called(Trainer):
    __call__ = Trainer.loss


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Counted(nn.Module):
    """A criterion whose counter hangs in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Slots()

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        self.state.calls += 1
        return weighed(output.square().mean(), self.state.calls)


_slots = Slots()
_total = torch.zeros(1)
_deep: dict[str, Any] = {}


def slots(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    _slots.calls += 1
    return weighed(base(model, x), _slots.calls)


def tensor_in_place(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = base(model, x)
    _total.add_(loss.detach())
    return loss * (1 + _total)


def tensor_rebound(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    global _total
    loss = base(model, x)
    _total = _total + loss.detach()
    return loss * (1 + _total)


def _count() -> int:
    _deep["trainer"].calls += 1
    return int(_deep["trainer"].calls)


def _helper() -> int:
    return _count()


def deep(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return weighed(base(model, x), _helper())


def own_attribute(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    own_attribute.calls = getattr(own_attribute, "calls", 0) + 1  # type: ignore[attr-defined] # the point
    return weighed(base(model, x), own_attribute.calls)  # type: ignore[attr-defined] # as above


def given(trainer: Trainer, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return trainer.loss(model, x)


def _default() -> Loss:
    def loss(model: nn.Module, x: torch.Tensor, state: list[int] = [0]) -> torch.Tensor:  # noqa: B006 - because scripts do this
        state[0] += 1
        return weighed(base(model, x), state[0])

    return loss


def _criterion(*, rebound: bool) -> Loss:
    criterion = Centred(rebound=rebound)
    return lambda model, x: criterion(model(x))  # type: ignore[no-any-return] # as above


def _counted() -> Loss:
    criterion = Counted()
    return lambda model, x: criterion(model(x))  # type: ignore[no-any-return] # as above


def _teacher() -> Loss:
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return lambda model, x: (model(x) - teacher(x).detach()).square().mean()  # type: ignore[no-any-return] # as above


def _begin_anew() -> None:
    global _total
    _slots.calls, _total = 0, torch.zeros(1)
    _deep["trainer"] = Trainer()
    vars(own_attribute).clear()


MADE: dict[str, Callable[[], Loss]] = {
    "criterion's buffer": lambda: _criterion(rebound=False),
    "criterion's buffer, rebound": lambda: _criterion(rebound=True),
    "object in a criterion": _counted,
    "teacher in training mode": _teacher,
    "bound method": lambda: Trainer().loss,
    "callable object": Called,
    "partial": lambda: functools.partial(given, Trainer()),
    "default argument": _default,
    "attribute of the function": lambda: own_attribute,
    "slots": lambda: slots,
    "tensor, in place": lambda: tensor_in_place,
    "tensor, rebound": lambda: tensor_rebound,
    "two calls down": lambda: deep,
}


def train(loss_fn: Loss, run: Path | None, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = run and Guard(
        model, optimizer, run=run, policy="record", audit=loss_fn, audit_rate=1.0, **options
    )
    generator = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        x = torch.randn(8, 4, generator=generator)
        loss = loss_fn(model, x)
        loss.backward()
        if guard:
            guard.observe(loss, x)
        optimizer.step()
        optimizer.zero_grad()
    if guard:
        guard.close()
        assert guard.health.errors == 0, guard.health.last_error
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", MADE)
def test_state_outside_of_the_model_is_put_back(tmp_path: Path, kind: str) -> None:
    _begin_anew()
    torch.manual_seed(1)
    plain = train(MADE[kind](), None)
    _begin_anew()
    torch.manual_seed(1)
    guarded = train(MADE[kind](), tmp_path)
    assert all(map(torch.equal, plain, guarded))
    with RunReader(tmp_path) as reader:
        told = dict(
            reader.rows(
                "SELECT json_extract_string(detail, '$.verdict'), count(*) FROM events "
                "WHERE kind = 'audit' GROUP BY ALL"
            )
        )
    assert told == {"sound": STEPS - 1}


def _alerts(run: Path) -> list[Any]:
    with RunReader(run) as reader:
        return list(reader.rows("SELECT step, detail FROM alerts"))


def _reasons(run: Path) -> str:
    with RunReader(run) as reader:
        return str(reader.rows("SELECT detail FROM events WHERE kind = 'audit'"))


@pytest.mark.parametrize("first", [True, False])
def test_a_hook_that_clips_now_and_then_accuses_nobody(tmp_path: Path, first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def clip(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.clamp_(-3, 3)

    def hook() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(clip)  # type: ignore[no-untyped-call] # torch has no types here

    if first:
        hook()
    options: dict[str, Any] = {"policy": "record", "audit": base, "audit_rate": 1.0}
    with Guard(model, optimizer, run=tmp_path, **options) as guard:
        if not first:
            hook()
        for step in range(20):
            x = torch.randn(8, 4) * (100 if step in (12, 15) else 1)
            loss = base(model, x)
            loss.backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert not any("intermittent" in detail for _, detail in _alerts(tmp_path))
    assert "a hook of the script" in _reasons(tmp_path)


def test_a_batch_that_is_refilled_before_it_is_observed_accuses_nobody(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"policy": "record", "audit": base, "audit_rate": 1.0}
    x = torch.empty(8, 4)
    with Guard(model, optimizer, run=tmp_path, **options) as guard:
        for step in range(20):
            x.normal_()
            loss = base(model, x)
            loss.backward()
            if step in (12, 15):
                x.normal_()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert _alerts(tmp_path) == []
    assert "another input" in _reasons(tmp_path)
