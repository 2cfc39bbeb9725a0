"""Measures of gradients against float64 numpy, at the right moment of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.utils.checkpoint import checkpoint

from sdc_guard.evidence import HostCopy
from sdc_guard.signals import measures as measures_module
from sdc_guard.signals.gradients import GradientCapture
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.measures import sums_into, sums_of
from sdc_guard.signals.sums import MEASURES, measures


def attach(model: nn.Module) -> tuple[GradientCapture, list[tuple[str, BaseException]]]:
    troubles: list[tuple[str, BaseException]] = []
    return GradientCapture(model_layers(model), lambda *trouble: troubles.append(trouble)), troubles


def taken(capture: GradientCapture) -> dict[int, dict[str, float]]:
    (measured,) = capture.take()
    numel = np.array([capture.parameters[row][0].numel for row in measured.rows])
    return {
        row: dict(zip(MEASURES, values, strict=True))
        for row, values in zip(
            measured.rows, measures(HostCopy(measured.sums).array(), numel).tolist(), strict=True
        )
    }


def measured_of(gradient: torch.Tensor, numel: int | None = None) -> list[float]:
    """The five measures of one gradient in host memory; plain torch must agree."""
    numel = gradient.numel() if numel is None else numel
    out = np.zeros((1, 5))
    sums_into(gradient, numel, out[0])
    row: list[float] = measures(out, np.array([numel]))[0].tolist()
    if gradient.layout == torch.strided:
        plain = measures(sums_of(gradient).numpy()[None], np.array([numel]))[0].tolist()
        assert row == pytest.approx(plain, rel=1e-6, nan_ok=True)
    return row


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_the_measures_are_those_of_float64(scale: float, rng: np.random.Generator) -> None:
    values = (rng.standard_normal(100_003) * scale).astype(np.float32)
    values[:7] = 0
    norm, largest, mean, nonfinite, zeros = measured_of(torch.from_numpy(values))
    exact = values.astype(np.float64)
    assert norm == pytest.approx(np.sqrt(np.square(exact).sum()), rel=1e-6)
    assert largest == np.abs(exact).max()
    assert mean == pytest.approx(np.abs(exact).mean(), rel=1e-6)
    assert (nonfinite, zeros) == (0, 7)


@pytest.mark.parametrize("chunk", [1, 7, 100, 101])
def test_the_internal_chunk_size_does_not_show(
    chunk: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(measures_module, "_CHUNK", chunk)
    exact = rng.standard_normal((10, 10))
    exact[3, 3:5] = 0
    norm, largest, mean, nonfinite, zeros = measured_of(torch.from_numpy(exact).t())
    assert norm == pytest.approx(np.sqrt(np.square(exact).sum()), rel=1e-12)
    assert (largest, nonfinite, zeros) == (np.abs(exact).max(), 0, 2)
    assert mean == pytest.approx(np.abs(exact).mean(), rel=1e-12)
    exact[9, 9] = np.nan
    assert measured_of(torch.from_numpy(exact))[3] == 1


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64],
    ids=str,
)
def test_every_dtype_of_a_gradient(dtype: torch.dtype) -> None:
    values = [0.5, -2.0, 0.0, 3.0]  # exact in every one of them
    if dtype.is_complex:
        gradient = torch.tensor([complex(3, 4), complex(0, 0)], dtype=dtype)
        assert measured_of(gradient) == [5.0, 5.0, 2.5, 0, 1]
        return
    assert measured_of(torch.tensor(values).to(dtype)) == [
        pytest.approx(np.sqrt(13.25), rel=1e-7), 3.0, 1.375, 0, 1,
    ]  # fmt: skip


def test_large_and_small_float64_gradients() -> None:
    assert measured_of(torch.full((4,), 65504.0, dtype=torch.float16))[0] == 2 * 65504
    assert measured_of(torch.full((4,), 3e38))[0] == 2 * float(np.float32(3e38))
    assert measured_of(torch.empty(0)) == [0, 0, 0, 0, 0]


def test_nonfinite_elements_are_counted() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), 0.0, -float("inf")])
    for gradient in (values, values.double(), values.bfloat16(), values.repeat(1000)):
        measured = measured_of(gradient)
        assert measured[3:] == [gradient.numel() * 3 / 5, gradient.numel() / 5]
        assert np.isnan(measured[1])
    assert measured_of(torch.tensor([1.0, float("inf")]))[1] == float("inf")


@pytest.mark.slow
def test_sixty_four_million_elements_are_exact_to_a_millionth(rng: np.random.Generator) -> None:
    values = rng.standard_normal(1 << 26, dtype=np.float32)
    exact = np.sqrt(
        sum(float(np.square(part, dtype=np.float64).sum()) for part in values.reshape(64, -1))
    )
    assert measured_of_large(values) == pytest.approx(exact, rel=1e-6)
    values[:] = 0.1234567  # rounding errors of equal numbers all go one way
    assert measured_of_large(values) == pytest.approx(float(values[0]) * 2**13, rel=1e-6)


def measured_of_large(values: np.ndarray[Any, Any]) -> float:
    out = np.zeros(5)
    sums_into(torch.from_numpy(values), values.size, out)
    return float(np.sqrt(out[0]))


@pytest.mark.parametrize("constant", [0.1234567, 0.777, 1 / 3, 1.9999999])
def test_equal_numbers_do_not_add_up_their_rounding_errors(constant: float) -> None:
    gradient = torch.full((1 << 20,), constant)
    exact = float(gradient[0].double()) * 2**10
    assert measured_of(gradient)[0] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("count", [450, 511, 1023])
@pytest.mark.parametrize("constant", [1e-7, 0.1, 0.777])
def test_nor_do_those_of_a_short_block(count: int, constant: float) -> None:
    gradient = torch.full((count,), constant)
    norm, _, mean, _, _ = measured_of(gradient)
    exact = float(gradient[0].double())
    assert (norm, mean) == pytest.approx((exact * count**0.5, exact), rel=2e-7)


@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 5000),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_any_finite_gradient_is_measured_as_in_float64(values: np.ndarray[Any, Any]) -> None:
    exact = values.astype(np.float64)
    norm, largest, mean, nonfinite, zeros = measured_of(torch.from_numpy(values))
    assert norm == pytest.approx(np.sqrt(np.square(exact).sum()), rel=1e-6, abs=1e-50)
    assert (largest, nonfinite, zeros) == (np.abs(exact).max(), 0, (exact == 0).sum())
    assert mean == pytest.approx(np.abs(exact).mean(), rel=1e-6, abs=1e-50)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_does_not_show(threads: int, rng: np.random.Generator) -> None:
    gradient = torch.from_numpy(rng.standard_normal(3 * (1 << 19) + 5, dtype=np.float32))
    alone = measured_of(gradient)
    torch.set_num_threads(threads)
    try:
        assert measured_of(gradient) == alone
    finally:
        torch.set_num_threads(1)


def test_layouts_that_are_not_row_by_row() -> None:
    images = torch.randn(2, 3, 4, 5)
    for gradient in (
        images.contiguous(memory_format=torch.channels_last),
        images.transpose(1, 3),
        images[:, ::2],
        torch.ones(1).expand(7),
        torch.tensor(3.0),
    ):
        assert measured_of(gradient)[0] == pytest.approx(float(gradient.double().norm()), rel=1e-6)


def test_accumulated_micro_batches_give_the_norm_of_their_sum() -> None:
    model = nn.Linear(3, 2)
    capture, _ = attach(model)
    for number in range(3):
        model(torch.full((4, 3), float(number + 1))).sum().backward()
    assert capture.backwards == 3
    assert taken(capture)[0]["norm"] == pytest.approx(float(model.weight.grad.norm()), rel=1e-6)
    assert capture.take() == []


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
    row = taken(capture)[0]
    assert row["norm"] == pytest.approx(np.sqrt(2 * 9 + 2 * 1))
    assert (row["zeros"], row["mean_abs"]) == (6, pytest.approx(8 / 10))
    assert troubles == []


def test_trouble_in_a_hook_is_told_and_does_not_reach_the_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 2)
    capture, troubles = attach(model)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("sdc_guard.signals.gradient_table.sums_of_many", broken)
    model(torch.ones(4, 3)).sum().backward()
    monkeypatch.undo()
    assert {str(error) for _, error in troubles} == {"out of memory"}
    model(torch.ones(4, 3)).sum().backward()  # and the next backward is measured again
    assert len(taken(capture)) == 2


class Failing(torch.autograd.Function):
    """Passes its input on, and fails in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise MemoryError("out of memory")


def test_a_backward_that_fails_half_way_does_not_end_the_measuring() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 1)})
    capture, troubles = attach(model)
    for _ in range(2):
        with pytest.raises(MemoryError):
            # the hooks of b fire, then the engine gives up
            model["b"](Failing.apply(model["a"](torch.ones(1, 2)))).sum().backward()
        model.zero_grad()
        model["b"](model["a"](torch.ones(1, 2))).sum().backward()
        assert capture.backwards == 1
        assert list(taken(capture)) == [0, 1, 2, 3]
    assert troubles == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_give_the_values_of_the_whole_backward(reentrant: bool) -> None:
    model = nn.ModuleDict({"shared": nn.Linear(3, 3), "head": nn.Linear(3, 1)})
    capture, troubles = attach(model)
    x = torch.randn(4, 3, requires_grad=True)
    hidden = model["shared"](x)
    hidden = checkpoint(model["shared"], hidden, use_reentrant=reentrant)
    model["head"](model["shared"](hidden)).sum().backward()
    assert capture.backwards == 1
    for layer, row in taken(capture).items():
        gradient = list(model.parameters())[layer].grad
        assert gradient is not None
        assert row["norm"] == pytest.approx(float(gradient.double().norm()), rel=1e-6)
    assert troubles == []


def test_an_engine_that_takes_no_callback_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    capture, troubles = attach(model)

    class Engine:
        def queue_callback(self, _: object) -> None:
            raise RuntimeError("compiled autograd")

    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd.Variable, "_execution_engine", Engine())
        model.weight.grad = torch.ones(2, 2)
        capture._on_gradient(0, model.weight)
        capture._on_gradient(0, model.weight)
    assert [str(error) for _, error in troubles] == ["compiled autograd"]
    model(torch.ones(1, 2)).sum().backward()
    assert len(taken(capture)) == 2


def test_zeros_are_not_missing() -> None:
    model = nn.Linear(2, 2)
    capture, _ = attach(model)
    model(torch.ones(1, 2)).sum().backward()
    capture.take()
    model.zero_grad(set_to_none=False)
    (model(torch.zeros(1, 2)) * 0).sum().backward()
    assert {layer: row["zeros"] for layer, row in taken(capture).items()} == {0: 4, 1: 2}


def test_only_its_own_hooks_are_removed() -> None:
    model = nn.Linear(3, 2)
    calls: list[int] = []
    model.weight.register_post_accumulate_grad_hook(lambda _: calls.append(1))
    capture, _ = attach(model)
    capture.remove()
    model(torch.ones(4, 3)).sum().backward()
    assert calls == [1]
    assert capture.take() == []


def test_large_and_small_gradients_are_measured_alike(rng: np.random.Generator) -> None:
    """Small ones together at the end of the backward, large ones in their own hooks."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (1, 3, 4096, 4097, 600_000))
    values = [torch.from_numpy(rng.standard_normal(len(p), dtype=np.float32)) for p in model]
    capture, troubles = attach(model)
    for _ in range(2):  # accumulated: the newest counts
        sum((p * value).sum() for p, value in zip(model, values, strict=True)).backward()
    assert troubles == []
    found = taken(capture)
    assert len(found) == 5
    for row, value in enumerate(values):
        assert found[row]["norm"] == pytest.approx(2 * float(value.double().norm()), rel=1e-6)
    model[0].grad = None
    assert capture.take() == []


@pytest.mark.parametrize("numel", [3, 5000], ids=["small", "middle"])
def test_what_a_later_hook_writes_to_a_gradient_is_not_measured(numel: int) -> None:
    """A hook of the script may come at any time, also after backwards without one."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(numel)), nn.Parameter(torch.zeros(2))])
    capture, troubles = attach(model)

    def backward() -> dict[int, dict[str, float]]:
        (model[0].sum() + model[1].sum()).backward()
        found = taken(capture)
        model.zero_grad()
        return found

    before = backward()

    def spoil(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.fill_(7.0)

    handle = model[0].register_post_accumulate_grad_hook(spoil)  # type: ignore[no-untyped-call] # torch has no types here
    assert backward() == before
    handle.remove()
    assert backward() == before
    assert before[0]["norm"] == pytest.approx(np.sqrt(numel))
    assert troubles == []


def test_gradients_of_another_kind_than_was_promised_are_measured_one_by_one() -> None:
    """The parameter's memory is exchanged for a narrower one after the guard was attached."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (3, 5000, 4))
    capture, troubles = attach(model)
    for parameter in model[:2]:
        parameter.data = parameter.data.to(torch.bfloat16)
    (model[0].sum() * 2 + model[1].sum() * 2 + model[2].sum()).backward()
    assert model[0].grad is not None
    assert model[0].grad.dtype is torch.bfloat16
    found = taken(capture)
    norms = [found[row]["norm"] for row in range(3)]
    assert norms == pytest.approx([2 * 3**0.5, 2 * 5000**0.5, 2.0])
    assert troubles == []
