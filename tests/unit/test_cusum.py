"""CUSUM against sums by hand, and against Page's recursion one stream at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.cusum import ALLOWANCE, LARGEST, Cusum, larger


def test_a_shift_of_one_sigma_gains_half_of_one_at_each_step() -> None:
    cusum = Cusum((1,))
    up, down = cusum.after(np.ones((10, 1)))
    np.testing.assert_allclose(up[:, 0], 0.5 * np.arange(1, 11))
    assert not down.any()
    up, down = cusum.after(-np.ones((10, 1)))
    np.testing.assert_allclose(down[:, 0], 0.5 * np.arange(1, 11))
    assert larger(up, down)[-1, 0] == -5.0


def test_a_single_spike_counts_for_no_more_than_a_few_sigma() -> None:
    up, _ = Cusum((1,)).after(np.array([[1e9], [0.0]]))
    assert up[:, 0].tolist() == [LARGEST - ALLOWANCE, LARGEST - 2 * ALLOWANCE]


def test_a_missing_value_leaves_the_sums_as_they_are() -> None:
    cusum = Cusum((2,))
    cusum.move_to(np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    up, down = cusum.after(np.array([[np.nan, 0.0]]))
    assert up.tolist() == [[3.0, 2.5]]
    assert down.tolist() == [[1.0, 0.5]]


@given(
    z=st.lists(st.floats(-6, 6), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_the_recursion_in_parts_is_the_recursion(z: list[float], cut: int) -> None:
    up = down = 0.0
    for value in z:
        near = min(max(value, -LARGEST), LARGEST)
        up, down = max(0.0, up + (near - ALLOWANCE)), max(0.0, down - (near + ALLOWANCE))
    cusum = Cusum((1,))
    for part in (z[:cut], z[cut:]):
        if part:
            ups, downs = cusum.after(np.array(part)[:, None])
            cusum.move_to(ups[-1], downs[-1])
    assert (float(cusum.up[0]), float(cusum.down[0])) == (up, down)
