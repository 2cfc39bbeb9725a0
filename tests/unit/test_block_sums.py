"""The measures' sums: the order is fixed, so that their bits are everywhere the same."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from sdc_guard.signals.block_sums import BLOCK
from sdc_guard.signals.fused_cpu import PART, sums_at, sums_of_many, sums_of_one

Floats = NDArray[np.float32]


def in_lanes(block: Floats) -> np.float32:
    """64 lanes; then 16 of them, then by halves."""
    lanes = np.zeros(64, dtype=np.float32)
    for row in block.reshape(-1, 64):
        lanes += row
    first, second, third, fourth = lanes.reshape(4, 16)
    whole = (first + second) + (third + fourth)
    while len(whole) > 1:
        half = len(whole) // 2
        whole = whole[:half] + whole[half:]
    return np.float32(whole[0])


def one_by_one(block: NDArray[np.float64]) -> np.float32:
    total = 0.0
    for value in block.tolist():
        total += value
    return np.float32(total)


def expected(values: Floats) -> tuple[float, float]:
    """Σg² and Σ|g| of values whose squares are within float32's range."""
    squares = sizes = 0.0
    for start in range(0, len(values), PART):
        square = size = 0.0
        part = values[start : start + PART]
        for place in range(0, len(part), BLOCK):
            block = np.abs(part[place : place + BLOCK])
            if len(block) == BLOCK:
                square += float(in_lanes(block * block))
                size += float(in_lanes(block))
            else:
                wide = block.astype(np.float64)
                square += float(one_by_one(wide * wide))
                size += float(one_by_one(wide))
        squares, sizes = squares + square, sizes + size
    return squares, sizes


def measured(values: Floats) -> NDArray[np.float64]:
    table = np.zeros((1, 5))
    sums_of_one(torch.from_numpy(values), table, 0)
    return table[0]


@pytest.mark.parametrize("count", [1, 63, 511, 512, 513, 5_000, PART + 700])
def test_the_order_is_that_of_the_description(rng: np.random.Generator, count: int) -> None:
    values = rng.normal(0, 1e-3, count).astype(np.float32)
    found = measured(values)
    assert (found[0], found[2]) == expected(values)
    table = np.zeros((3, 5))
    addresses, counts = array("q", [values.ctypes.data] * 2), array("q", [count] * 2)
    sums_of_many(addresses, counts, array("q", [2, 0]), table.ctypes.data)
    assert (table[::2] == found).all()
    assert not table[1].any()
    sums_at(values.ctypes.data, count, table[1].ctypes.data)
    assert (table == found).all()


@given(
    hnp.arrays(
        np.float32,
        st.sampled_from([5, 512, 700, 1024]),
        elements=st.floats(-(2.0**49), 2.0**49, width=32),
        fill=st.sampled_from([0.0, -0.0, 1.0, 1e-3]),
    )
)
def test_against_float64(values: Floats) -> None:
    wide = values.astype(np.float64)
    squares, largest, sizes, nonfinite, zeros = measured(values)
    np.testing.assert_allclose(squares, (wide * wide).sum(), rtol=2e-5, atol=0)
    np.testing.assert_allclose(sizes, np.abs(wide).sum(), rtol=2e-5, atol=0)
    assert largest == np.abs(wide).max()
    assert (nonfinite, zeros) == (0, (wide == 0).sum())


FRESH = """
import numpy as np, torch
from sdc_guard.signals.fused_cpu import sums_of_one
torch.set_num_threads(1)
values = torch.from_numpy(np.random.default_rng(7).normal(0, 1e-3, 100_000).astype(np.float32))
table = np.zeros((1, 5))
sums_of_one(values, table, 0)
print([value.hex() for value in table[0]])
"""


def test_code_that_was_just_compiled_makes_the_same_bits(tmp_path: Path) -> None:
    """A first process compiles, the next one loads what it left."""
    values = np.random.default_rng(7).normal(0, 1e-3, 100_000).astype(np.float32)
    told = [
        subprocess.run(
            [sys.executable, "-c", FRESH],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert told[0] == told[1] == f"{[float(value).hex() for value in measured(values)]}\n"
