"""Gradients that are read in a thread beside the backward, and those that must not be."""

from __future__ import annotations

import copy
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard.evidence import HostCopy
from sdc_guard.signals import beside
from sdc_guard.signals.gradients import GradientCapture
from sdc_guard.signals.layers import model_layers

WIDTH = 600  # a weight of 1.4 MB


@pytest.fixture
def _free_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdc_guard.signals.beside.core_is_free", lambda: True)


def read_all(tensors: list[torch.Tensor]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    table = np.full((len(tensors), 5), np.nan)
    reading = beside.Reading()
    for row, tensor in enumerate(tensors):
        reading.read(tensor, table, row)
    assert reading.gradients
    reading.finish(table)
    assert not reading.gradients
    return table


def expected(tensors: list[torch.Tensor]) -> list[list[float]]:
    return [
        [float(f(t.double())) for f in (lambda x: x.square().sum(), lambda x: x.abs().max())]
        for t in tensors
    ]


def some_tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in (1, 700, 1_000_000, 5, 600_000)]


def test_all_that_was_handed_over_is_read_after_waiting() -> None:
    for seed in range(5):
        tensors = some_tensors(seed)
        assert read_all(tensors)[:, :2] == pytest.approx(np.array(expected(tensors)), rel=1e-6)
    beside.Reading().finish(np.zeros((0, 5)))  # nothing to wait for


def test_what_goes_wrong_is_told_to_who_waits_and_the_next_is_read() -> None:
    reading = beside.Reading()
    table = np.zeros((1, 5))
    reading.read(torch.ones(beside.TOGETHER, device="meta"), table, 0)
    beside.Reading().finish(table)  # another's trouble
    with pytest.raises(ValueError, match="no memory"):
        reading.finish(table)
    reading.finish(table)
    assert read_all([torch.ones(4)])[0].tolist() == [4, 1, 4, 0, 0]


def child(found: multiprocessing.SimpleQueue[float]) -> None:
    found.put(float(read_all([torch.full((10,), 2.0)])[0, 0]))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_a_reader_of_its_own() -> None:
    read_all([torch.ones(4)])
    context = multiprocessing.get_context("fork")
    found: multiprocessing.SimpleQueue[float] = context.SimpleQueue()
    process = context.Process(target=child, args=(found,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert found.get() == 40.0


def norms(capture: GradientCapture) -> dict[str, float]:
    return {
        capture.parameters[row][0].name: float(sums[0] ** 0.5)
        for measured in capture.take()
        for row, sums in zip(measured.rows, HostCopy(measured.sums).array(), strict=True)
    }


def attach(model: nn.Module) -> GradientCapture:
    def trouble(where: str, error: BaseException) -> None:
        raise AssertionError(where) from error

    return GradientCapture(model_layers(model), trouble, modules=model.modules())


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    out: torch.Tensor = model(torch.randn(16, WIDTH, generator=generator))
    return out.square().mean()


def present(model: nn.Module) -> dict[str, float]:
    return {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.usefixtures("_free_core")
@pytest.mark.parametrize("together", [1, beside.TOGETHER])
def test_large_gradients_have_the_norms_of_this_backward(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "TOGETHER", together)
    model = net()
    capture = attach(model)
    for micro in range(3):  # accumulated: the sum so far counts
        loss_of(model, micro).backward()
        assert capture._read_beside
        assert not capture._reading.gradients
    held = present(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norms(capture) == pytest.approx(held, rel=1e-6)


@pytest.mark.usefixtures("_free_core")
def test_a_later_hook_that_writes_to_the_gradient_is_not_raced_with() -> None:
    model, twin = net(), net()
    capture = attach(model)

    def drop(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.zero_()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(drop)  # type: ignore[no-untyped-call] # torch has no types here
    loss_of(model, 1).backward()
    loss_of(twin, 1).backward()
    assert norms(capture) == pytest.approx(present(twin), rel=1e-6)


@pytest.mark.usefixtures("_free_core")
def test_what_an_inner_backward_adds_is_counted() -> None:
    model, twin = net(), net()
    capture = attach(model)
    for each in (model, twin):
        x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(2)).requires_grad_()
        # the first layer is used twice, each time in a checkpoint that runs its own backward
        y = x
        for _ in range(2):
            y = torch.utils.checkpoint.checkpoint(each, y, use_reentrant=True)
        y.square().mean().backward()
    assert norms(capture) == pytest.approx(present(twin), rel=1e-6)


@pytest.mark.usefixtures("_free_core")
def test_a_backward_that_fails_leaves_nothing_to_wait_for() -> None:
    model = net()
    capture = attach(model)

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    handle = model[0].weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of(model, 1).backward()
    handle.remove()
    model.zero_grad()
    loss_of(model, 2).backward()
    assert norms(capture) == pytest.approx(present(model), rel=1e-6)


@pytest.mark.usefixtures("_free_core")
@pytest.mark.parametrize("width", [20, WIDTH])
def test_a_modules_hook_that_writes_to_gradients_is_not_raced_with(width: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])
    twin = copy.deepcopy(model)

    def drop(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.data.zero_()

    for module in model[1:]:
        module.register_full_backward_hook(drop)
    capture = attach(model)
    for each in (model, twin):
        generator = torch.Generator().manual_seed(3)
        each(torch.randn(16, width, generator=generator)).square().mean().backward()
    assert norms(capture) == pytest.approx(present(twin), rel=1e-6)


@pytest.mark.usefixtures("_free_core")
def test_the_newest_gradient_counts_where_a_backward_makes_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the first one the read is still to come when the second one is handed over."""
    model = nn.Linear(1 << 18, 1, bias=False)
    capture = attach(model)
    busy = beside.Reading()
    busy.read(torch.ones(1 << 25), np.zeros((1, 5)), 0)
    for value, together in ((1.0, 1), (2.0, 1), (3.0, 1 << 40)):
        monkeypatch.setattr(beside, "TOGETHER", together)
        model.weight.grad = torch.full_like(model.weight, value)
        capture._reading.read(model.weight.grad, capture._table.sums, 0)
    busy.finish(np.zeros((1, 5)))
    assert norms(capture) == {"weight": 3.0 * 2**9}


@pytest.mark.usefixtures("_free_core")
@pytest.mark.parametrize("count", [64, 20_000, 600_000])
def test_a_gradient_without_memory_is_told_and_not_read(count: int) -> None:
    class Zero(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            return torch._efficientzerotensor(gradients[0].shape)

    model = nn.Linear(count, 1, bias=False)
    troubles: list[str] = []
    layers = model_layers(model)
    capture = GradientCapture(layers, lambda where, error: troubles.append(str(error)))
    Zero.apply(model.weight).sum().backward()
    found = norms(capture)
    assert found == {"weight": 0.0} or (not found and "no memory" in " ".join(troubles))


def test_a_gradient_that_shrinks_is_measured_as_it_is() -> None:
    model = nn.Linear(64, 60)
    capture = attach(model)
    model(torch.ones(3, 64)).sum().backward()
    capture.take()
    model.weight.data = model.weight.data[:2].clone()
    model.bias.data = model.bias.data[:2].clone()
    model.weight.grad = model.bias.grad = None
    model(torch.ones(3, 64)).sum().backward()
    assert norms(capture) == pytest.approx(present(model), rel=1e-6)


@pytest.mark.usefixtures("_free_core")
def test_a_wait_that_is_interrupted_leaves_the_next_one_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    capture = attach(model)
    loss_of(model, 1).backward()
    with monkeypatch.context() as patch:

        def interrupted(_: threading.Event) -> bool:
            raise KeyboardInterrupt

        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loss_of(model, 2).backward()
    model.zero_grad()
    capture.take()
    for seed in range(3, 6):
        loss_of(model, seed).backward()
        assert norms(capture) == pytest.approx(present(model), rel=1e-6)
        model.zero_grad()
