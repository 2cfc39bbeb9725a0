"""The gradient kernel under Triton's interpreter, on CPU tensors, against float64 numpy.

Run by test_interpreted.py in a process of its own: whether Triton interprets is settled when it is
first imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sdc_guard.signals import chunk_table, device_sums
from sdc_guard.signals.fused_cuda import sums
from sdc_guard.signals.measures import sums_of

SMALL = 1 << 13  # a chunk of two tiles


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_table, "CHUNK", SMALL)


def exact(gradient: torch.Tensor) -> NDArray[np.float64]:
    """The five sums, by numpy."""
    wide = gradient.detach().double().numpy().ravel()
    size = np.abs(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(
            [
                np.square(wide).sum(),
                size.max(initial=0.0),
                size.sum(),
                (~np.isfinite(wide)).sum(),
                (wide == 0).sum(),
            ]
        )


def check(gradients: list[torch.Tensor]) -> NDArray[np.float64]:
    found = sums(gradients).numpy()
    assert found.shape == (len(gradients), 5)
    for row, gradient in zip(found, gradients, strict=True):
        expected = exact(gradient)
        np.testing.assert_allclose(row[[0, 2]], expected[[0, 2]], rtol=1e-6, atol=0)
        np.testing.assert_array_equal(row[[1, 3, 4]], expected[[1, 3, 4]])
    return found


def drawn(rng: np.random.Generator, size: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(rng.standard_normal(size))
    values[::7] = 0
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sizes_around_tiles_and_chunks(dtype: torch.dtype, rng: np.random.Generator) -> None:
    chunk = chunk_table.CHUNK
    sizes = [0, 1, 2, 4095, 4096, 4097, chunk - 1, chunk, chunk + 1, 2 * chunk + 1]
    check([drawn(rng, size, dtype) for size in sizes])


@pytest.mark.usefixtures("_small_chunks")
def test_many_gradients_of_all_dtypes_and_places(rng: np.random.Generator) -> None:
    dtypes = list(device_sums.fused_kernels().ELEMENTS)
    gradients = [
        drawn(rng, int(size), dtypes[place % 4])
        for place, size in enumerate(rng.integers(0, 3 * SMALL, 24))
    ]
    gradients += [drawn(rng, 999, dtype)[1:] for dtype in dtypes]  # not at a multiple of 16 bytes
    gradients.append(drawn(rng, 150 * SMALL, torch.float16)[: 130 * SMALL])  # folded twice
    together = check(gradients)
    table = chunk_table.ChunkTables().of(gradients)
    assert {(part.dtype, part.aligned) for part in table.launches} == {
        (dtype, aligned) for dtype in dtypes for aligned in (True, False)
    }
    assert sum(part.chunks for part in table.launches) == table.chunks
    # which others there are does not show in a single bit
    for place in (0, 1, 2, 3, 24):
        assert sums([gradients[place]])[0].tolist() == together[place].tolist()


@pytest.mark.parametrize("scale", [1e30, 1e-30, 3e38, 1.2e-38, 1e-44])
def test_no_square_overflows_or_vanishes(scale: float, rng: np.random.Generator) -> None:
    wide = torch.from_numpy(rng.uniform(-1, 1, 5000) * scale)
    wide[0] = 0.0
    found = check([wide.float(), torch.full((5000,), scale), wide])
    assert np.isfinite(found).all()
    assert (found[:, 0] > 0).all()


def test_large_and_tiny_numbers_side_by_side() -> None:
    mixed = torch.tensor([3e38, 1e-45, 1.0, -2e30, 1e-38, 0.0, -0.0, 1e10]).repeat(600)
    check([mixed, mixed.double(), torch.tensor([65504.0, 6e-8, -0.0], dtype=torch.float16)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_not_finite_is_counted_and_seen(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), 0.0, -0.0, -float("inf")], dtype=dtype)
    found = sums([values.repeat(900), values[2:], -values[:2]]).numpy()
    assert found[:, 3].tolist() == [2700, 2, 1]
    assert found[:, 4].tolist() == [1800, 2, 0]
    assert np.isnan(found[0, :3]).all()
    assert np.isinf(found[1, :3]).all()
    assert np.isnan(found[2, :3]).all()


@pytest.mark.parametrize("constant", [0.1234567, 0.777, 1 / 3, 1.9999999])
def test_equal_numbers_do_not_add_up_their_rounding_errors(constant: float) -> None:
    check([torch.full((1 << 17,), constant)])


@pytest.mark.usefixtures("_small_chunks")
@settings(max_examples=15)
@given(
    hnp.arrays(
        np.float32,
        st.integers(0, 2 * SMALL + 3),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_any_finite_gradient_is_summed_as_in_float64(values: np.ndarray[Any, Any]) -> None:
    check([torch.from_numpy(values)])


def test_the_operator_mixes_what_the_kernel_knows_with_what_it_does_not() -> None:
    gradients = [
        torch.tensor([1.0, -2.0, 0.0]),
        torch.tensor([3 + 4j, 0j]),
        torch.tensor([0.5, -2.0]).to(torch.float8_e4m3fn),
        torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2),
        torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(0, 3),
        torch.tensor(-7.0, dtype=torch.bfloat16),
        torch.ones(1).expand(7),
    ]
    found = device_sums._on_cuda(gradients)
    assert device_sums._unbuilt == []
    for row, gradient in zip(found, gradients, strict=True):
        assert row.tolist() == pytest.approx(sums_of(gradient).tolist(), rel=1e-6)


def test_a_table_is_kept_until_there_is_no_room_for_it() -> None:
    gradients = [torch.ones(10), torch.ones(20)]
    tables = chunk_table.ChunkTables(200)
    first = tables.of(gradients)
    assert first.words.nbytes == 64  # two chunks, two spans
    assert tables.of(list(gradients)) is first
    others = [torch.ones(number) for number in range(1, 6)]
    for other in others:
        tables.of([other])
    assert tables.of(gradients) is not first
    assert tables.of([others[-1]]) is tables.of([others[-1]])
