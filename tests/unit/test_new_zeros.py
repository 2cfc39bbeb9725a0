"""Zeros where there were none: which of them have a healthy cause."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_signals import alerts_of

from sdc_guard.detect.double_centred import WARM_UP
from sdc_guard.detect.new_zeros import LEAST, NewZeros
from sdc_guard.detect.sensor import StepSensor
from sdc_guard.detect.step_signals import StepSignals

SHAPES = ((64, 100), (64,), (8, 4, 5, 5), (100, 64))
NUMEL = np.array([6400, 64, 800, 6400])


def signals_of(zeros: np.ndarray) -> StepSignals:
    """Steps of ordinary gradients with these zeros, shape (steps, layers)."""
    norms = np.where(zeros == NUMEL, 0.0, 1.0)
    return StepSignals(norms, norms / 4, zeros, np.zeros_like(zeros))


def zeros_at(last: list[int], steps: int = WARM_UP + 1) -> StepSignals:
    """Steps without a zero, but for the last."""
    zeros = np.zeros((steps, len(SHAPES)), dtype=np.int64)
    zeros[-1] = last
    return signals_of(zeros)


def over(signals: StepSignals, budget: float | None = 1e-5) -> list[list[int]]:
    """(step, layer) of each alarm, all steps judged at once."""
    judged = NewZeros(SHAPES, NUMEL, budget).judge(signals)
    return [] if judged.over is None else np.argwhere(judged.over).tolist()


@pytest.mark.parametrize(
    ("last", "alarm"),
    [
        ([17, 0, 0, 0], True),
        ([150, 0, 0, 0], True),
        ([0, 0, 37, 0], True),
        ([LEAST, 0, 0, 0], False),  # a few elements happen to cancel
        ([100, 0, 0, 0], False),  # a row: a unit that is off, a token that the batch lacks
        ([64, 0, 0, 0], False),  # a column: an input that is always 0
        ([300, 0, 0, 0], False),
        ([0, 0, 100, 0], False),  # a filter of 4 · 5 · 5
        ([0, 0, 200, 0], False),  # an input channel of 8 · 5 · 5
        ([0, 0, 24, 0], False),  # three of its taps: what is rare was at an edge
        ([0, 40, 0, 0], False),  # each element of a vector is a unit's own
        ([150, 1, 0, 0], False),  # a unit that is off shows in its bias, too
        ([150, 0, 0, 64], False),  # and in the next layer
        ([6400, 0, 0, 0], False),  # nothing but zeros: not used, and others' to tell
    ],
)
def test_only_zeros_without_a_healthy_cause_are_told(last: list[int], alarm: bool) -> None:
    assert over(zeros_at(last)) == ([[WARM_UP, last.index(max(last))]] if alarm else [])


def test_a_layer_that_is_used_with_gaps_is_no_layer_s_own() -> None:
    signals = zeros_at([150, 0, 0, 0])
    signals.norms[-1, 3] = np.nan
    assert over(signals) == []


def test_nothing_is_told_before_the_layer_is_known_nor_without_a_budget() -> None:
    assert over(zeros_at([150, 0, 0, 0], WARM_UP)) == []
    assert over(zeros_at([150, 0, 0, 0]), None) == []


def test_whole_rows_are_told_once_they_are_rarer_than_the_budget() -> None:
    """The rule of succession: after n steps without, the next has them with 1/(n + 2)."""
    assert over(zeros_at([100, 0, 0, 0], 997), budget=1e-3) == []
    assert over(zeros_at([100, 0, 0, 0], 999), budget=1e-3) == [[998, 0]]


def test_what_a_layer_has_had_is_nothing_new() -> None:
    zeros = np.zeros((300, len(SHAPES)), dtype=np.int64)
    zeros[::7, 0], zeros[::7, 3], zeros[::11, 2] = 5, 5, 90
    zeros[202, 0], zeros[205, 3], zeros[208, 2] = 81, 5 * 8 + LEAST, 150
    zeros[250, 0] = 157  # told once; from then on the layer is one with zeros
    assert over(signals_of(zeros)) == [[202, 0]]


def test_the_alert_says_how_many() -> None:
    sensor = StepSensor(["a", "b", "c", "d"], NUMEL, shapes=SHAPES)
    (alert,) = alerts_of(sensor, zeros_at([0, 0, 0, 77], 100))
    assert (alert.step, alert.detector, alert.layer_name) == (99, "gradient_new_zeros", "d")
    assert alert.detail["text"].startswith("77 elements of the gradient are exactly 0")
    assert alert.severity == "suspect"
    # a shard's rows are not known
    unknown = StepSensor(["a", "b", "c", "d"], NUMEL)
    assert alerts_of(unknown, zeros_at([0, 0, 0, 77], 100)) == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_many_steps_at_once_are_as_good_as_one_by_one(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    steps = sum(sizes) + WARM_UP
    zeros = rng.integers(0, 200, (steps, 4)) * (rng.random((steps, 4)) < 0.01)
    signals = signals_of(zeros.astype(np.int64))
    signals.norms[rng.random((steps, 4)) < 0.005] = np.nan
    together, single = (NewZeros(SHAPES, NUMEL, 1e-2) for _ in range(2))
    start = 0
    for size in [WARM_UP - 5, *sizes, 5]:
        judged = together.judge(part := signals.steps(start, start + size))
        together.admit(judged)
        for step in range(size):
            alone = single.judge(part.steps(step, step + 1))
            single.admit(alone)
            np.testing.assert_array_equal(judged.score[step], alone.score[0])
            expected = np.zeros(4, dtype=bool) if judged.over is None else judged.over[step]
            found = np.zeros(4, dtype=bool) if alone.over is None else alone.over[0]
            np.testing.assert_array_equal(expected, found)
        start += size
