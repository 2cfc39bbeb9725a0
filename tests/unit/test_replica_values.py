"""What two replicas' values say, of differences made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.replica_values import Compared, compare, words_of

SEED = 20240611
WORDS = {"float64": torch.int64, "float32": torch.int32, "float16": torch.int16}


def weights(count: int = 4096, dtype: torch.dtype = torch.float32, seed: int = SEED) -> Any:
    print(f"seed {seed}")
    return (torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


def compared(one: torch.Tensor, other: torch.Tensor) -> Compared | None:
    dtype = str(one.dtype).removeprefix("torch.")
    sides = [words_of(x.view(torch.uint8).numpy().tobytes(), dtype) for x in (one, other)]
    assert sides[0] is not None
    assert sides[1] is not None
    return compare(sides[0], sides[1], dtype)


def flipped(tensor: torch.Tensor, index: int, bit: int) -> torch.Tensor:
    other = tensor.clone()
    words = other.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()])
    one = 1 << bit
    words[index] ^= (
        one - (1 << 8 * tensor.element_size()) if bit == 8 * tensor.element_size() - 1 else one
    )
    return other


@given(bit=st.integers(3, 31), index=st.integers(0, 4095), seed=st.integers(0, 2**16))
def test_one_flipped_bit_is_corruption_and_located(bit: int, index: int, seed: int) -> None:
    one = weights(seed=seed)
    found = compared(one, flipped(one, index, bit))
    assert found is not None
    assert (found.sort, found.differing, found.of) == ("corruption", 1, 4096)
    assert (found.index, found.bits) == (index, [bit])
    assert found.one == int(one.view(torch.int32)[index]) % 2**32


@given(bit=st.integers(0, 2), index=st.integers(0, 4095))
def test_a_last_bit_alone_may_be_either(bit: int, index: int) -> None:
    one = weights()
    found = compared(one, flipped(one, index, bit))
    assert found is not None
    assert found.sort == "unclassified"


@given(bits=st.lists(st.integers(23, 30), min_size=2, max_size=8), seed=st.integers(0, 2**16))
def test_exponents_of_several_elements_are_corruption(bits: list[int], seed: int) -> None:
    one = weights(seed=seed)
    other = one.clone()
    largest = one.abs().argsort(descending=True)[: len(bits)]
    for bit, index in zip(bits, largest.tolist(), strict=True):
        other = flipped(other, index, bit)
    found = compared(one, other)
    assert found is not None
    assert found.sort == "corruption"
    assert found.differing == len(bits)
    assert found.largest >= 0.5


def test_few_tiny_differences_of_many_elements_are_drift() -> None:
    rng = np.random.default_rng(SEED)
    print(f"seed {SEED}")
    one = weights(131_072)
    other = one.clone()
    places = rng.choice(131_072, 15, replace=False)
    other[places] *= 1 + 1.4e-5
    found = compared(one, other)
    assert found is not None
    assert (found.sort, found.differing, found.of) == ("drift", 15, 131_072)
    assert found.largest == pytest.approx(1.4e-5, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_in_another_order_are_drift(dtype: torch.dtype) -> None:
    terms = weights(64 * 512).reshape(64, 512).abs().double().sqrt().to(dtype)
    one, other = torch.zeros(512, dtype=dtype), torch.zeros(512, dtype=dtype)
    for row in range(64):
        one += terms[row]
        other += terms[63 - row]
    found = compared(one, other)
    assert found is not None
    assert found.sort == "drift"
    assert found.differing > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_some_units_in_the_last_place_are_drift_where_they_are_wide(dtype: torch.dtype) -> None:
    one = weights(dtype=dtype)
    other = one.clone()
    other.view(torch.int16)[::7] += 2
    found = compared(one, other)
    assert found is not None
    assert found.sort == "drift"
    assert found.differing == 4096 // 7 + 1


def test_what_is_not_finite_is_corruption() -> None:
    one = weights()
    for value in (float("nan"), float("inf")):
        other = one.clone()
        other[[3, 7]] = value
        found = compared(one, other)
        assert found is not None
        assert (found.sort, found.differing, found.largest) == ("corruption", 2, float("inf"))


def test_what_differs_all_over_or_by_a_little_more_is_neither() -> None:
    one = weights()
    for other in (weights(seed=1), one * 1.1):
        found = compared(one, other)
        assert found is not None
        assert found.sort == "unclassified"


def test_the_two_zeros_differ_in_a_bit_and_in_no_value() -> None:
    found = compared(torch.zeros(8), torch.tensor([0.0, -0.0] * 4))
    assert found is not None
    assert (found.sort, found.largest) == ("drift", 0.0)


def test_nothing_to_say() -> None:
    one = weights(8)
    assert compared(one, one.clone()) is None
    assert compared(one, weights(4)) is None
    assert words_of(b"\0\0", "float8_e4m3fn") is None
