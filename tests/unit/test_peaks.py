"""Peaks over threshold against distributions whose tails are known."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard.detect.layer_watch import Kind, LayerWatch
from sdc_guard.detect.peaks import FEWEST, KEPT, PeakThreshold, Tail, pareto, tail_of

PRIOR = Tail(level=3.5, share=1e-3, scale=0.5, shape=0.2)


def gpd(rng: np.random.Generator, scale: float, shape: float, count: int) -> np.ndarray:
    """By the inverse of the distribution function: F(y) = 1 − (1 + ξy/σ)^(−1/ξ)."""
    u = rng.uniform(size=count)
    return -scale * np.log1p(-u) if shape == 0 else scale / shape * ((1 - u) ** -shape - 1)


@pytest.mark.parametrize(("scale", "shape"), [(1.0, 0.0), (2.0, 0.2), (0.5, 0.4), (1.0, -0.3)])
def test_scale_and_shape_of_a_known_distribution(
    scale: float, shape: float, rng: np.random.Generator
) -> None:
    found_scale, found_shape = pareto(gpd(rng, scale, shape, 100_000))
    assert found_scale == pytest.approx(scale, rel=0.03)
    assert found_shape == pytest.approx(shape, abs=0.03)


def test_weighted_moments_of_three_values_by_hand() -> None:
    """Plotting positions (i − 0.35)/3; a₀ is the mean, a₁ the mean of (1 − position)·value."""
    ordered = np.array([1.0, 2.0, 3.0])
    first = 2.0
    second = ((1 - 0.65 / 3) * 1 + (1 - 1.65 / 3) * 2 + (1 - 2.65 / 3) * 3) / 3
    scale, shape = pareto(ordered[::-1])
    assert scale == pytest.approx(2 * first * second / (first - 2 * second))
    assert shape == pytest.approx(2 - first / (first - 2 * second))


def test_the_value_that_is_exceeded_with_a_probability() -> None:
    tail = Tail(level=2.0, share=0.05, scale=1.5, shape=0.25)
    value = tail.exceeded_with(1e-4)
    assert 0.05 * (1 + 0.25 * (value - 2.0) / 1.5) ** (-1 / 0.25) == pytest.approx(1e-4)
    exponential = Tail(level=2.0, share=0.05, scale=1.5, shape=0.0)
    assert exponential.exceeded_with(1e-4) == pytest.approx(2 + 1.5 * math.log(500))
    assert tail.exceeded_with(0.5) == 2.0


def test_the_largest_of_many_exceeds_what_one_does_a_hundred_times_more_rarely() -> None:
    many = PRIOR.of_the_largest(100)
    assert many.exceeded_with(1e-5) == pytest.approx(PRIOR.exceeded_with(1e-7))
    assert PRIOR.of_the_largest(1) == PRIOR


def test_quantiles_beyond_what_was_seen(rng: np.random.Generator) -> None:
    """1e-4 of Student's t with 3 degrees of freedom: 22.20 two-sided."""
    draws = np.abs(rng.standard_t(3, KEPT))
    value = tail_of(draws, Tail(2.0, 0.05, 1.0, 1 / 3)).exceeded_with(1e-4)
    assert 22.2 / 1.7 < value < 22.2 * 1.7


def test_ties_and_constant_scores_have_a_tail(rng: np.random.Generator) -> None:
    with np.errstate(all="raise"):
        assert tail_of(np.zeros(500), PRIOR).scale == PRIOR.scale
        assert math.isfinite(tail_of(np.repeat([0.0, 2.2], [490, 10]), PRIOR).exceeded_with(1e-6))
        assert math.isfinite(pareto(np.array([0.0, 0.0, 1e9]))[0])


def test_the_calibrated_tail_holds_at_first() -> None:
    threshold = PeakThreshold(1e-4, PRIOR)
    assert threshold.value == PRIOR.exceeded_with(1e-4)
    threshold.take(np.ones(FEWEST - 1))
    assert not threshold.renew()
    threshold.take(np.ones(1))
    assert threshold.renew()
    assert threshold.value != PRIOR.exceeded_with(1e-4)


def test_a_fault_that_lasts_does_not_lift_the_threshold_above_itself(
    rng: np.random.Generator,
) -> None:
    clean, faulty = PeakThreshold(1e-3, PRIOR), PeakThreshold(1e-3, PRIOR)
    for _ in range(20):
        peaks = np.abs(rng.normal(size=100))
        clean.take(peaks)
        faulty.take(np.append(peaks, 1e12))
        clean.renew()
        faulty.renew()
    assert faulty.value < 3 * clean.value


def test_no_budget_is_no_alarm() -> None:
    threshold = PeakThreshold(None, PRIOR)
    threshold.take(np.full(5000, 1e9))
    threshold.renew()
    assert threshold.value == math.inf


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 700), min_size=3, max_size=12))
def test_going_back_undoes_what_was_taken_in(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    threshold = PeakThreshold(1e-4, PRIOR)
    threshold.take(rng.exponential(size=KEPT - 100))
    threshold.renew()
    reference, total = copy.deepcopy(threshold), sum(sizes)
    before = threshold.remember(total)
    for size in sizes:
        threshold.take(rng.exponential(size=size))
        threshold.renew()
    threshold.go_back(before)
    np.testing.assert_array_equal(threshold._values, reference._values)
    assert (threshold.value, threshold.tail) == (reference.value, reference.tail)
    assert (threshold._count, threshold._due) == (reference._count, reference._due)


def draws(kind: str, steps: int, layers: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "laplace":
        return rng.laplace(size=(steps, layers))
    if kind == "normal":
        return rng.normal(size=(steps, layers))
    shocks = (
        rng.standard_t(3, (steps, layers)) if "t3" in kind else rng.normal(size=(steps, layers))
    )
    if not kind.startswith("ar1"):
        return shocks
    values = shocks.copy()
    for step in range(1, steps):
        values[step] = 0.8 * values[step - 1] + 0.6 * shocks[step]
    return values


@pytest.mark.parametrize("kind", ["normal", "laplace", "t3", "ar1", "ar1 t3"])
@pytest.mark.parametrize("layers", [1, 24])
def test_false_incidents_stay_within_three_times_the_budget(kind: str, layers: int) -> None:
    """From a tail that was calibrated on something else; incidents are alarms 50 steps apart."""
    seed, steps, budget = 11, 12_000, 1e-3
    print(f"seed {seed}")
    x = 0.1 * draws(kind, steps, layers, np.random.default_rng(seed))[:, None, None]
    watch = LayerWatch([Kind("norm", 0.05, PRIOR)], layers, budget=budget)
    alarms, step = [], 0
    while step < steps:
        judged = watch.judge(x[step : step + watch.at_once])
        if judged.over is not None and len(judged.score) > 1:
            judged = watch.judge(x[step : step + 1])
        alarms += [step] if judged.over is not None else []
        watch.admit(judged)
        step += len(judged.score)
    incidents = int((np.diff(alarms, prepend=-1000) > 50).sum())
    assert incidents <= 3 * budget * steps, (kind, incidents)
