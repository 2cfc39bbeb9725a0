"""The shadow pass leaves no trace: a model with every kind of state, before and after."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard.signals.shadow import ShadowPass


class Stateful(nn.Module):
    """Dropout, batch norms (one frozen), a rebound buffer, counters, caches, generators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm, self.frozen = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.frozen.eval()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("ema", torch.zeros(4))
        self.calls = 0
        self.seen: list[int] = []
        self.cache: dict[str, torch.Tensor] = {"kept": torch.ones(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.cache["last"] = x
        self.lazy = torch.ones(3)
        self.ema = self.ema * 0.9 + x.mean(0).detach()
        self.norm.train()  # even a model that flips its own modes
        noise = torch.rand(1) + random.random() + float(np.random.rand())
        return self.drop(self.frozen(self.norm(self.linear(x)))) * noise


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def test_nothing_that_a_forward_changes_stays_changed() -> None:
    model = Stateful()
    shadow = ShadowPass(torch.randn(8, 4), loss_fn)
    model(torch.randn(8, 4))  # a little history first
    buffers = dict(model.named_buffers())
    values = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    attributes = (model.calls, list(model.seen), dict(model.cache), model.lazy)
    generators = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())

    result = shadow(model)

    assert result.losses[0] == result.losses[1]
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name]), name
    assert [module.training for module in model.modules()] == modes
    assert (model.calls, model.seen, model.lazy) == (*attributes[:2], attributes[3])
    assert list(model.cache) == list(attributes[2])
    assert all(model.cache[name] is value for name, value in attributes[2].items())
    assert random.getstate() == generators[0]
    assert np.random.get_state()[1].tolist() == generators[1]
    assert torch.equal(torch.get_rng_state(), generators[2])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_attribute_made_by_the_pass_is_gone_after_it() -> None:
    model = Stateful()
    ShadowPass(torch.randn(8, 4), loss_fn)(model)
    assert not hasattr(model, "lazy")
    assert list(model.cache) == ["kept"]


def test_the_batch_is_pinned() -> None:
    batch = torch.ones(8, 4)
    model = nn.Linear(4, 1)
    shadow = ShadowPass(batch, loss_fn)
    before = shadow(model).losses
    batch.zero_()
    assert torch.equal(shadow(model).losses, before)


def test_everything_is_put_back_when_the_loss_function_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())

    def broken(_: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        raise ValueError("no such column")

    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="no such column"):
        ShadowPass(torch.ones(2, 4), broken)(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
