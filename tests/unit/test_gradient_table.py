"""What was measured of gradients, against plain torch in float64, whatever way each was read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard.evidence import HeldNumbers
from sdc_guard.signals.fused_cpu import no_nonfinite_at
from sdc_guard.signals.gradients import GradientCapture
from sdc_guard.signals.layers import model_layers

SIZES = (3, 4096, 4097, 20_000, 70_000)  # noted and read at the end, or read in their hooks


class Rows(nn.Module):
    """A vector of each size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = nn.ParameterList([torch.randn(size) for size in SIZES])

    def forward(self, scale: float, leave_out: int | None = None) -> torch.Tensor:
        kept = [row for place, row in enumerate(self.rows) if place != leave_out]
        return sum((scale * row.square().sum() for row in kept), torch.zeros(()))


def attach(model: nn.Module) -> GradientCapture:
    def trouble(where: str, error: BaseException) -> None:
        raise AssertionError(where) from error

    return GradientCapture(model_layers(model), trouble)


def norms_of(capture: GradientCapture) -> list[float]:
    (measured,) = capture.take()
    return np.sqrt(np.asarray(measured.sums)[:, 0]).tolist()


def present(model: nn.Module) -> list[float]:
    gradients = [parameter.grad for parameter in model.parameters()]
    return [float(gradient.double().norm()) for gradient in gradients if gradient is not None]


def test_every_size_has_the_norm_of_the_newest_backward() -> None:
    model = Rows()
    capture = attach(model)
    for step in range(4):
        model(1.0).backward()
        if step == 2:  # accumulated, and once more into some of them alone
            model(2.0, leave_out=3).backward()
        assert norms_of(capture) == pytest.approx(present(model), rel=1e-6)
        model.zero_grad(set_to_none=step % 2 == 0)


def test_what_was_taken_is_not_written_to_by_the_next_backward() -> None:
    model = Rows()
    capture = attach(model)
    model(1.0).backward()
    (measured,) = capture.take()
    before = np.array(measured.sums)
    model.zero_grad()
    model(3.0).backward()
    assert np.array_equal(np.asarray(measured.sums), before)
    assert norms_of(capture) == pytest.approx(present(model), rel=1e-6)


def test_of_many_steps_each_keeps_what_was_taken() -> None:
    """More of them than one array is made for."""
    model = Rows()
    capture = attach(model)
    taken, expected = [], []
    for step in range(70):
        model(1.0 + step).backward()
        taken.append(capture.take()[0])
        expected.append(present(model))
        model.zero_grad()
    found = [np.sqrt(np.asarray(measured.sums)[:, 0]).tolist() for measured in taken]
    assert found == [pytest.approx(norms, rel=1e-6) for norms in expected]
    assert len({measured.place for measured in taken}) == len(taken)


@pytest.mark.parametrize("step", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("dropped", [False, True])
def test_what_is_not_finite_is_seen_where_it_lies(step: int, value: float, dropped: bool) -> None:
    model = Rows()
    capture = attach(model)
    for number in range(step + 1):
        loss = model(1.0)
        if number == step:
            loss = loss + (value - 1.0) * model.rows[1][7]
        loss.backward()
        if dropped:
            model.rows[3].grad = None
        (measured,) = capture.take()
        model.zero_grad()
    assert measured.place == np.asarray(measured.sums).ctypes.data
    assert len(measured.rows) == len(SIZES) - dropped
    assert no_nonfinite_at(measured.place, len(measured.rows)) is (value == 1.0)


@pytest.mark.parametrize("dropped", range(len(SIZES)))
def test_a_gradient_that_the_script_dropped_is_missing(dropped: int) -> None:
    model = Rows()
    capture = attach(model)
    model(1.0).backward()
    model.rows[dropped].grad = None
    (measured,) = capture.take()
    assert measured.rows == [row for row in range(len(SIZES)) if row != dropped]
    assert np.sqrt(np.asarray(measured.sums)[:, 0]) == pytest.approx(present(model), rel=1e-6)


def test_other_orders_of_the_small_ones() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    capture = attach(model)
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 2, 0, 1, 3), (0, 1, 2, 3)):
        x = torch.ones(2, 4)
        for place in order:
            x = model[place](x)
        x.square().sum().backward()
        assert norms_of(capture) == pytest.approx(present(model), rel=1e-6)
        model.zero_grad()


def test_one_gradient_that_is_no_usual_one_among_small_ones() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    capture = attach(model)

    class Transposed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, weight: torch.Tensor) -> torch.Tensor:
            return weight.clone()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0].t().contiguous().t()

    weight = Transposed.apply(model[1].weight)
    nn.functional.linear(
        model[0](torch.ones(3, 8)), weight, model[1].bias
    ).square().sum().backward()
    assert norms_of(capture) == pytest.approx(present(model), rel=1e-6)


@pytest.mark.parametrize("wrong", [None, 0, 4])
def test_nonfinite_elements_are_seen(wrong: int | None) -> None:
    sums = np.full((5, 5), 7.0)
    sums[:, 3] = 0.0
    if wrong is not None:
        sums[wrong, 3] = 2.0
    assert no_nonfinite_at(sums.ctypes.data, len(sums)) is (wrong is None)


def test_held_numbers_are_those_of_an_array() -> None:
    held = HeldNumbers([0.1, float("inf")])
    assert held.ready()
    assert held.numbers() == held.array().tolist() == held.get().tolist() == [0.1, float("inf")]
    assert (held.array().dtype, held.get().dtype) == (np.float64, torch.float64)
