"""The budget of digests: what it chooses adds up to what it may cost, and leaves nothing out."""

from __future__ import annotations

import itertools
import math
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
    allowed = steps * seconds * budget / 100 / 2  # with what follows from it, it is twice that
    whole = 2 * sum(size + 8192 for size in SIZES.values()) / speed
    learning = 60 * seconds * budget / 100 / 2 * max(1.0, 0.5e9 / speed, speed / 0.5e9)
    assert spent <= min(allowed, steps * whole) + learning + whole
    if sum(taken.values()) > 40:  # in turn: no tensor more than once more often than another
        assert max(taken.values()) - min(taken[key] for key in SIZES) <= 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.01, 32), (0.045, 1e-3 / (0.045 * 0.001)), (0.1, 10), (1.0, 8)],
)
def test_small_allowances_are_spent_together(seconds: float, expected: float) -> None:
    """To begin has a price of its own: a millisecond is spent at once, or that of 32 steps."""
    size = {("param", number): 64 for number in range(10_000)}
    rotation, began = Rotation(0.2), []
    for step in range(2000):
        rotation.step_took(seconds)
        chosen = rotation.choose(list(size), size)
        if chosen:
            began.append(step)
            rotation.digested(len(chosen), 64 * len(chosen), (64 + 8192) * len(chosen) / 0.5e9)
    gaps = [b - a for a, b in itertools.pairwise(began)]
    tensor = (64 + 8192) / 0.5e9 * 2 / (seconds * 0.002 / 2)  # in steps: what may be left over
    assert gaps[:7] == pytest.approx([8] * 7, abs=1 + tensor)  # to learn what they take
    assert gaps[8:] == pytest.approx([expected] * len(gaps[8:]), abs=1 + tensor)


def test_a_pause_is_no_long_step() -> None:
    rotation = Rotation(1.0)
    for _ in range(50):
        rotation.step_took(0.01)
    rotation.step_took(600.0)
    chosen = rotation.choose(list(SIZES), SIZES)
    # 1 % of about 11 ms at the guessed 0.5 GB/s, halved twice: 14 kB
    assert sum(SIZES[key] + 8192 for key in chosen) < 30_000


@pytest.mark.parametrize("budget", [0.2, 100.0])
def test_no_tensors_no_choice(budget: float) -> None:
    rotation = Rotation(budget)
    rotation.step_took(1.0)
    assert rotation.choose([], {}) == []


@given(st.floats(0.01, 20), st.floats(1e-4, 10), st.floats(1e-6, 1e-3))
def test_counters_take_half_of_the_budget_at_most(
    budget: float, seconds: float, cost: float
) -> None:
    rotation = Rotation(budget)
    allowed = seconds * budget / 100 / 2 / 2  # with what follows from reading it is twice that
    worth = min(1e-3 / (2 * allowed), 32)  # of less than a millisecond as many as that takes
    every = max(1, math.ceil(max(2 * cost / allowed, worth) * (1 - 1e-9)))
    read = []
    for step in range(3 * min(every, 500) + 30):
        rotation.step_took(seconds)
        if rotation.counters_due():
            read.append(step)
            rotation.counters_took(cost)
            rotation.counters_took(cost)
    first, later = read[:8], read[8:]
    assert first == list(range(8))  # to learn what they take
    gaps = [b - a for a, b in itertools.pairwise(later[-2:])]
    if every < 500:
        assert later
    # until the first readings weigh less it seems to be more than it is
    assert all(every <= gap <= 1.4 * every + 1 for gap in gaps)


def test_what_counters_take_is_not_left_to_tensors() -> None:
    size = {("param", n): 10_000 for n in range(100_000)}
    taken = []
    for cost in (0.0, 1e-4, 1.0):
        rotation = Rotation(1.0)
        for _ in range(50):
            rotation.step_took(1.0)
            rotation.counters_took(cost)
        total = sum(len(rotation.choose(list(size), size)) for _ in range(80))
        taken.append(total)
    assert taken[1] == pytest.approx(taken[0] * (0.005 - 2e-4) / 0.005, rel=0.01)
    assert taken[2] == pytest.approx(taken[0] / 2, rel=0.01)


def test_counters_are_read_always_or_never_without_a_share() -> None:
    whole, none = Rotation(None), Rotation(0.0)
    assert [whole.counters_due() for _ in range(20)] == [True] * 20
    assert [none.counters_due() for _ in range(20)] == [False] * 20
