"""A forward pass that writes to parameters: they are put back, or it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sdc_guard.signals.restoration import ParameterWritten
from sdc_guard.signals.shadow import ShadowPass


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_clips_its_rows_keeps_them(kind: type[nn.Module]) -> None:
    model = kind(5, 4, max_norm=0.1)
    assert isinstance(model.weight, nn.Parameter)
    weight = model.weight.detach().clone()
    ShadowPass(torch.tensor([[1, 2]]), loss_fn)(model)
    assert torch.equal(model.weight, weight)
    model(torch.tensor([[1, 2]]))
    assert not torch.equal(model.weight, weight)


class Clamping(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Momentum(nn.Module):
    """A second encoder that follows the first, in the two ways that are in use."""

    def __init__(self, assign: bool) -> None:
        super().__init__()
        self.assign = assign
        self.encoder, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.key.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one, two in zip(self.encoder.parameters(), self.key.parameters(), strict=True):
            if self.assign:
                two.data = two.data * 0.9 + one.data * 0.1
            else:
                two.data.mul_(0.9).add_(one.data, alpha=0.1)
        return self.encoder(x) - self.key(x)


@pytest.mark.parametrize(
    "make", [lambda: Clamping(4, 4), lambda: Momentum(True), lambda: Momentum(False)]
)
def test_a_parameter_that_the_forward_writes_to_is_put_back(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(make())
    before = [(p.detach().clone(), p.data_ptr(), p._version) for p in model.parameters()]
    shadow = ShadowPass(torch.ones(2, 4), loss_fn)
    for _ in range(2):
        losses = shadow(model).losses
        assert losses[0] == losses[1]
        for parameter, (value, address, version) in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, value)
            assert (parameter.data_ptr(), parameter._version) == (address, version)


def test_a_forward_that_begins_later_to_write_to_a_parameter_is_told_once() -> None:
    class Late(nn.Linear):
        begun = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.begun:
                with torch.no_grad():
                    self.weight.add_(1)
            return super().forward(x)

    model, shadow = nn.Sequential(Late(4, 1)), ShadowPass(torch.ones(2, 4), loss_fn)
    shadow(model)
    model[0].begun = True
    with pytest.raises(ParameterWritten, match=r"wrote to the parameter 0\.weight"):
        shadow(model)
    assert model.training
    weight = model[0].weight.detach().clone()
    shadow(model)
    assert torch.equal(model[0].weight, weight)
