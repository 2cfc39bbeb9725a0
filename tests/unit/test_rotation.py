"""The budget of digests: what it chooses adds up to what it may cost, and leaves nothing out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.signals.rotation import Rotation

SIZES = {("param", number): 1000 * (number + 1) for number in range(20)}


def test_without_a_budget_everything_is_taken_at_every_step() -> None:
    rotation = Rotation(None)
    assert rotation.whole
    for _ in range(3):
        assert rotation.choose(list(SIZES), SIZES) == list(SIZES)


def test_nothing_is_taken_before_a_step_was_timed() -> None:
    assert Rotation(50.0).choose(list(SIZES), SIZES) == []


def test_a_budget_of_zero_takes_nothing() -> None:
    rotation = Rotation(0.0)
    for _ in range(10):
        rotation.step_took(1.0)
        assert rotation.choose(list(SIZES), SIZES) == []


@given(st.floats(0.01, 20), st.floats(1e-4, 1e-2), st.floats(1e8, 1e10))
def test_the_time_spent_is_the_budget(budget: float, seconds: float, speed: float) -> None:
    rotation = Rotation(budget)
    spent, steps = 0.0, 2000
    taken: Counter[tuple[str, int]] = Counter()
    for _ in range(steps):
        rotation.step_took(seconds)
        chosen = rotation.choose(list(SIZES), SIZES)
        assert len(set(chosen)) == len(chosen)
        taken.update(chosen)
        cost = sum(SIZES[key] + 8192 for key in chosen) / speed
        spent += 2 * cost  # after the step, and before the next one
        if chosen:
            rotation.digested(len(chosen), sum(SIZES[key] for key in chosen), cost)
    allowed = steps * seconds * budget / 100
    whole = 2 * sum(size + 8192 for size in SIZES.values()) / speed
    learning = 60 * seconds * budget / 100 * max(1.0, 0.5e9 / speed, speed / 0.5e9)
    assert spent <= min(allowed, steps * whole) + learning + whole
    if sum(taken.values()) > 40:  # in turn: no tensor more than once more often than another
        assert max(taken.values()) - min(taken[key] for key in SIZES) <= 1


def test_a_pause_is_no_long_step() -> None:
    rotation = Rotation(1.0)
    for _ in range(50):
        rotation.step_took(0.01)
    rotation.step_took(600.0)
    chosen = rotation.choose(list(SIZES), SIZES)
    # 1 % of about 11 ms at the guessed 0.5 GB/s, halved: 27 kB
    assert sum(SIZES[key] + 8192 for key in chosen) < 60_000


@pytest.mark.parametrize("budget", [0.2, 100.0])
def test_no_tensors_no_choice(budget: float) -> None:
    rotation = Rotation(budget)
    rotation.step_took(1.0)
    assert rotation.choose([], {}) == []
