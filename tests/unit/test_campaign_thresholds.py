"""Thresholds for a budget: incidents by hand, and what they do on streams that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.campaign.thresholds import (
    FalseAlarms,
    clusters,
    extremal_index,
    incidents,
    joined,
    judge,
    peaks,
    threshold_for,
)
from sdc_guard.detect.proportion import wilson

INF, NAN = math.inf, math.nan


def test_alarms_within_fifty_steps_are_one_incident() -> None:
    assert incidents([]) == 0
    assert incidents([5, 55, 105]) == 1
    assert incidents([5, 56]) == 2


def test_the_largest_score_of_each_incident() -> None:
    run = np.zeros(200)
    run[[10, 50, 100, 160]] = [3.0, 5.0, 4.0, 9.0]  # 40, 50 and 60 apart
    assert clusters(run, 1.0).tolist() == [5.0, 9.0]
    assert clusters(run, 5.0).tolist() == [9.0]
    assert clusters(run, 9.0).tolist() == []


def test_no_incident_goes_over_two_runs() -> None:
    run = np.zeros(10)
    run[[0, 9]] = 2.0
    assert judge([run, run], 1.0) == FalseAlarms(2, 20)


def test_the_peak_of_a_step_without_a_score_is_below_everything() -> None:
    assert peaks(np.array([[NAN, 2.0, 1.0], [NAN, NAN, NAN]])).tolist() == [2.0, -INF]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300), st.floats(0, 10), st.integers(1, 60))
def test_clusters_are_the_incidents_of_the_alarms(
    values: list[float], above: float, gap: int
) -> None:
    run = np.array(values)
    largest = clusters(run, above, gap)
    assert len(largest) == incidents(np.flatnonzero(run > above), gap)
    assert (largest > above).all()
    assert largest.max(initial=-INF) == max((x for x in values if x > above), default=-INF)


def test_false_alarms_have_wilsons_interval() -> None:
    alarms = FalseAlarms(2, 5000)
    assert alarms.rate == 4e-4
    assert alarms.interval == wilson(2, 5000)
    assert math.isnan(FalseAlarms(0, 0).rate)
    assert FalseAlarms(0, 0).interval == (0.0, 1.0)


def test_with_enough_steps_the_threshold_is_counted(rng: np.random.Generator) -> None:
    runs = [rng.normal(size=10_000) for _ in range(6)]
    found = threshold_for(runs, budget=1e-3)
    assert (found.method, found.steps) == ("counted", 60_000)
    assert judge(runs, found.value).incidents <= 60
    below = np.unique(np.concatenate(runs))
    lower = below[np.searchsorted(below, found.value) - 1]
    assert judge(runs, float(lower)).incidents > 60


def moving_sum(values: np.ndarray) -> np.ndarray:
    """Of twenty normal values: what is high at one step is so at those around it."""
    return np.convolve(values, np.ones(20), "valid")


@pytest.mark.parametrize("tail", ["normal", "laplace", "student", "correlated", "repeated"])
def test_an_extrapolated_threshold_keeps_the_budget_within_a_factor(
    tail: str, rng: np.random.Generator
) -> None:
    """A budget of 1 in 10,000 from 4,000 steps, judged on 400,000 others, twelve times."""
    draw = {
        "normal": rng.standard_normal,
        "laplace": lambda size: rng.laplace(size=size),
        "student": lambda size: rng.standard_t(3, size=size),
        "correlated": lambda size: moving_sum(rng.standard_normal(size + 19)),
        "repeated": lambda size: (
            np.repeat(rng.standard_normal(size // 6 + 1), 6)[:size] + rng.normal(0, 0.01, size)
        ),
    }[tail]
    realised = []
    for _ in range(12):
        found = threshold_for([np.abs(draw(500)) for _ in range(8)], budget=1e-4)
        assert found.method == "tail"
        realised.append(judge([np.abs(draw(200_000)) for _ in range(2)], found.value).rate)
    middle = float(np.median(realised))
    print(tail, [f"{rate:.1e}" for rate in realised])
    assert 1e-4 / 3 < middle < 3e-4


def test_an_infinite_score_of_a_healthy_run_costs_its_share_of_the_budget() -> None:
    rng = np.random.default_rng(1)
    runs = [rng.normal(size=500) for _ in range(8)]
    runs[0][250] = INF
    assert threshold_for(runs, budget=1e-4).value == INF  # one in 4,000 is more than allowed
    assert threshold_for(runs, budget=1e-3).value < 10


def test_scores_that_are_nearly_all_alike_have_no_tail() -> None:
    run = np.zeros(1000)
    run[500] = 3.0
    found = threshold_for([run], budget=1e-4)
    assert (found.value, found.method) == (3.0, "largest")
    assert judge([run], found.value).incidents == 0


@pytest.mark.parametrize("steps", [0, 100, 100_000])
def test_a_detector_without_a_score_gets_a_threshold_that_nothing_exceeds(steps: int) -> None:
    found = threshold_for([np.full(steps, -INF)], budget=1e-4)
    assert (found.value, found.method, found.steps) == (INF, "largest", steps)
    assert threshold_for([], budget=1e-4).value == INF


def test_the_extremal_index_is_one_over_the_size_of_clusters(rng: np.random.Generator) -> None:
    alone = np.flatnonzero(rng.random(200_000) < 0.01)
    assert extremal_index(alone) == pytest.approx(1.0, abs=0.08)
    fives = (np.flatnonzero(rng.random(200_000) < 0.001)[:, None] * 5 + np.arange(5)).ravel()
    assert extremal_index(fives) == pytest.approx(0.2, abs=0.05)
    assert extremal_index([1, 2, 3, 4]) == 1.0


def test_runs_are_joined_with_room_between_them() -> None:
    assert len(joined([np.ones(3), np.ones(4)], gap=5)) == 17
