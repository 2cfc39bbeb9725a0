"""Which steps are audited."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sdc_guard.detect.audit_plan import (
    CALIBRATING,
    MOST_ON_ALERT,
    PER_STEPS,
    AlertBudget,
    is_chosen,
)
from sdc_guard.detect.proportion import at_least, wilson


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.5])
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_share_of_the_steps_is_chosen(rate: float, attempt: int) -> None:
    count = 100_000
    chosen = sum(is_chosen(step, attempt, rate, 0) for step in range(100, 100 + count))
    spread = 5 * (count * rate * (1 - rate)) ** 0.5  # five standard deviations of a binomial
    assert abs(chosen - count * rate) < spread


def test_rates_of_none_and_all() -> None:
    assert not any(is_chosen(step, 1, 0.0, 0) for step in range(1000))
    assert all(is_chosen(step, 1, 1.0, 0) for step in range(1, 1000))
    assert not is_chosen(7, 1, 1.0, 7)


def test_the_first_steps_show_whether_a_training_repeats() -> None:
    chosen = [step for step in range(100, 110) if is_chosen(step, 1, 1e-9, 100)]
    assert chosen == [100 + after for after in CALIBRATING]


def test_attempts_choose_other_steps() -> None:
    one, two = ({s for s in range(100, 5000) if is_chosen(s, a, 0.1, 0)} for a in (1, 2))
    assert 0 < len(one & two) < 0.3 * len(one)


def test_no_generator_is_touched() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    is_chosen(5, 1, 0.5, 0)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_alerts_have_a_budget() -> None:
    budget = AlertBudget()
    allowed = [step for step in range(3 * PER_STEPS) if budget.spend(step)]
    assert len(allowed) == 3 * MOST_ON_ALERT
    assert allowed[MOST_ON_ALERT] - allowed[0] >= PER_STEPS


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    # statsmodels' proportion_confint(method="wilson")
    [(0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (5, 20, 0.111862, 0.468701)],
)
def test_wilson_against_published_values(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-5)


def test_the_tail_is_that_of_the_binomial(rng: np.random.Generator) -> None:
    assert at_least(2, 3, 0.5) == pytest.approx(0.5)
    assert at_least(5, 5, 0.125) == pytest.approx(0.125**5)
    drawn = rng.binomial(20, 0.3, 200_000)
    assert at_least(9, 20, 0.3) == pytest.approx(np.mean(drawn >= 9), abs=0.004)
