"""Measures of gradients against float64 numpy, at the right moment of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard.signals.gradients import MEASURES, GradientCapture, measure
from sdc_guard.signals.state import model_layers


def attach(model: nn.Module) -> tuple[GradientCapture, list[tuple[str, BaseException]]]:
    troubles: list[tuple[str, BaseException]] = []
    return GradientCapture(model_layers(model), lambda *trouble: troubles.append(trouble)), troubles


def taken(capture: GradientCapture) -> dict[int, dict[str, float]]:
    measured = capture.take()
    assert measured is not None
    layers, rows = measured
    return {
        layer: dict(zip(MEASURES, row, strict=True))
        for layer, row in zip(layers, rows.tolist(), strict=True)
    }


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_the_measures_are_those_of_float64(scale: float, rng: np.random.Generator) -> None:
    values = (rng.standard_normal(100_003) * scale).astype(np.float32)
    values[:7] = 0
    parameter = nn.Parameter(torch.zeros(100_003))
    parameter.grad = torch.from_numpy(values.copy())
    model = nn.Module()
    model.register_parameter("w", parameter)
    measured = measure(model_layers(model))
    assert measured is not None
    norm, largest, mean, nonfinite, zeros = measured[1][0].tolist()
    exact = values.astype(np.float64)
    assert norm == pytest.approx(np.sqrt(np.square(exact).sum()), rel=1e-12)
    assert largest == np.abs(exact).max()
    assert mean == pytest.approx(np.abs(exact).mean(), rel=1e-12)
    assert (nonfinite, zeros) == (0, 7)


def test_nonfinite_elements_are_counted() -> None:
    parameter = nn.Parameter(torch.zeros(5))
    parameter.grad = torch.tensor([1.0, float("nan"), float("inf"), 0.0, -float("inf")])
    model = nn.Module()
    model.register_parameter("w", parameter)
    measured = measure(model_layers(model))
    assert measured is not None
    assert measured[1][0, 3] == 3
    assert measured[1][0, 4] == 1


def test_accumulated_micro_batches_give_the_norm_of_their_sum() -> None:
    model = nn.Linear(3, 2)
    capture, _ = attach(model)
    for number in range(3):
        model(torch.full((4, 3), float(number + 1))).sum().backward()
    assert capture.backwards == 3
    assert taken(capture)[0]["norm"] == pytest.approx(float(model.weight.grad.norm()), rel=1e-6)
    assert capture.take() is None


def test_clipping_after_the_backward_changes_nothing() -> None:
    model = nn.Linear(3, 2)
    capture, _ = attach(model)
    model(torch.ones(4, 3)).sum().backward()
    norm = float(model.weight.grad.norm())
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert taken(capture)[0]["norm"] == pytest.approx(norm, rel=1e-6)


def test_a_tied_weight_counts_once_with_both_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    ((layer, _),) = model_layers(model)
    assert (layer.name, layer.aliases) == ("a.weight", ("b.weight",))
    capture, _ = attach(model)
    model["b"](model["a"](torch.ones(2, 3))).sum().backward()
    assert taken(capture)[0]["norm"] == pytest.approx(float(model["a"].weight.grad.norm()))


def test_frozen_and_unused_parameters_are_absent_and_zero_ones_are_not() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("a", "b", "c")})
    model["b"].weight.requires_grad_(False)
    capture, _ = attach(model)
    (model["b"](model["a"](torch.ones(1, 2))) * 0).sum().backward()
    measured = taken(capture)
    assert list(measured) == [0]
    assert (measured[0]["norm"], measured[0]["zeros"]) == (0, 4)


def test_a_sparse_gradient_is_coalesced() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    capture, troubles = attach(model)
    model(torch.tensor([1, 1, 1, 3])).sum().backward()
    # row 1 gathers three ones in each of two columns, row 3 one
    assert taken(capture)[0]["norm"] == pytest.approx(np.sqrt(2 * 9 + 2 * 1))
    assert troubles == []


def test_trouble_in_a_hook_is_told_and_does_not_reach_the_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 2)
    capture, troubles = attach(model)

    def broken(_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("sdc_guard.signals.gradients.measure", broken)
    model(torch.ones(4, 3)).sum().backward()
    monkeypatch.undo()
    assert [str(error) for _, error in troubles] == ["out of memory"]
    model(torch.ones(4, 3)).sum().backward()  # and the next backward is measured again
    assert capture.take() is not None


def test_only_its_own_hooks_are_removed() -> None:
    model = nn.Linear(3, 2)
    calls: list[int] = []
    model.weight.register_post_accumulate_grad_hook(lambda _: calls.append(1))
    capture, _ = attach(model)
    capture.remove()
    model(torch.ones(4, 3)).sum().backward()
    assert calls == [1]
    assert capture.take() is None
