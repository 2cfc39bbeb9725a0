"""Searching with an oracle that errs: the posterior against brute force, and how often right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.search.noisy import Noisy
from forensics.search.posterior import Posterior, Rate, gains, split
from forensics.search.verdicts import Verdict

FP, FN = 0.05, 0.2
counts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs], float), np.array([b for _, b in pairs], float)


def likelihood(pairs: list[tuple[int, int]], edge: int, fp: float, fn: float) -> float:
    result = 1.0
    for place, (corrupt, clean) in enumerate(pairs):
        rate = 1 - fn if place >= edge else fp
        result *= rate**corrupt * (1 - rate) ** clean
    return result


@given(counts)
def test_the_posterior_with_known_rates(pairs: list[tuple[int, int]]) -> None:
    weights = np.array([likelihood(pairs, k, FP, FN) for k in range(len(pairs) + 1)])
    found = Posterior.of(*arrays(pairs), Rate.false_positive(FP), Rate.false_negative(FN))
    np.testing.assert_allclose(found.weights, weights / weights.sum(), rtol=1e-9)


@given(counts)
def test_the_posterior_with_unknown_rates_is_the_integral_over_them(
    pairs: list[tuple[int, int]],
) -> None:
    grid = (np.arange(400) + 0.5) / 400
    prior = grid ** (2 - 1) * (1 - grid) ** (6 - 1)  # Beta(2, 6): smooth, so that a grid will do
    rate = Rate(None, 2, 6)
    weights, fps = [], []
    for edge in range(len(pairs) + 1):
        before, after = pairs[:edge], pairs[edge:]
        wrong, right = sum(a for a, _ in before), sum(b for _, b in before)
        false = grid**wrong * (1 - grid) ** right * prior
        right_after, wrong_after = sum(a for a, _ in after), sum(b for _, b in after)
        missed = grid**wrong_after * (1 - grid) ** right_after * prior
        weights.append(false.sum() * missed.sum())
        fps.append((grid * false).sum() / false.sum())
    found = Posterior.of(*arrays(pairs), rate, rate)
    np.testing.assert_allclose(found.weights, np.array(weights) / sum(weights), rtol=1e-4)
    np.testing.assert_allclose(found.fp, fps, rtol=1e-4)


def entropy(weights: np.ndarray) -> float:
    positive = weights[weights > 0]
    return float(-(positive * np.log2(positive)).sum())


@given(counts, st.integers(0, 2))
def test_gains_are_the_entropy_that_an_answer_takes_away(
    pairs: list[tuple[int, int]], more: int
) -> None:
    found = Posterior.of(*arrays(pairs), Rate.false_positive(FP), Rate.false_negative(FN))
    size = len(pairs)
    batch = [place % size for place in range(more)]  # asked in the same round
    rows = found.weights[np.newaxis, :]
    for place in batch:
        rows = split(rows, found, place)
    for place in range(size):
        said = 0.0
        without = 0.0
        for outcome in product((True, False), repeat=len(batch) + 1):
            joint = found.weights.copy()
            for asked, corrupt in zip([*batch, place], outcome, strict=True):
                rate = np.array([1 - FN if asked >= k else FP for k in range(size + 1)])
                joint = joint * (rate if corrupt else 1 - rate)
            said += joint.sum() * entropy(joint / joint.sum())
        for outcome in product((True, False), repeat=len(batch)):
            joint = found.weights.copy()
            for asked, corrupt in zip(batch, outcome, strict=True):
                rate = np.array([1 - FN if asked >= k else FP for k in range(size + 1)])
                joint = joint * (rate if corrupt else 1 - rate)
            without += joint.sum() * entropy(joint / joint.sum())
        assert gains(rows, found)[place] == pytest.approx(without - said, abs=1e-9)


@dataclass(frozen=True)
class Trial:
    right: bool
    held: bool
    tests: int
    rounds: int
    width: int


def trial(
    seed: int,
    *,
    known: bool = True,
    repeatable: bool = False,
    jobs: int = 1,
    count: int = 100,
    fp: float = FP,
    fn: float = FN,
) -> Trial:
    """One search for an edge at random."""
    rng = np.random.default_rng(seed)
    edge = int(rng.integers(count))
    planner = Noisy(
        count,
        Rate.false_positive(fp if known else None),
        Rate.false_negative(fn if known else None),
        repeatable=repeatable,
    )
    said: dict[int, bool] = {}
    tests = rounds = 0
    while places := planner.ask(jobs):
        rounds += 1
        for place in places:
            corrupt = bool(rng.random() < (1 - fn if place >= edge else fp))
            if repeatable:
                assert place not in said, "asked twice"
            said[place] = corrupt
            planner.tell(place, "corrupt" if corrupt else "clean")
            tests += 1
    found = planner.found()
    low = -1 if found.last_clean is None else found.last_clean
    high = count if found.first_corrupt is None else found.first_corrupt
    right = high == edge and found.exact
    assert planner.remaining() == 0
    return Trial(right, low < edge <= high, tests, rounds, high - low)


def trials(number: int, seed: int, **options: object) -> dict[str, float]:
    found = [trial(seed + i, **options) for i in range(number)]  # type: ignore[arg-type]
    names = ("right", "held", "tests", "rounds", "width")
    means = {name: float(np.mean([getattr(one, name) for one in found])) for name in names}
    print(f"{number} searches, {options}: {means}")
    return means


# 0.94 and 16 are what is asked for; of 150 searches 95.9 % ± 1.6 are right, of 2,000 ± 0.45
def test_19_of_20_are_right_with_16_answers_each(seed: int) -> None:
    means = trials(150, seed)
    assert means["right"] >= 0.91
    assert means["tests"] <= 16


@pytest.mark.slow
def test_19_of_20_are_right_with_16_answers_each_in_2000_searches(seed: int) -> None:
    means = trials(2000, seed)
    assert means["right"] >= 0.94
    assert means["tests"] <= 16


@pytest.mark.slow
@pytest.mark.parametrize(("fp", "fn"), [(0.05, 0.2), (0.01, 0.4), (0.15, 0.05), (0.01, 0.01)])
def test_of_unknown_rates_in_500_searches(seed: int, fp: float, fn: float) -> None:
    means = trials(500, seed, known=False, fp=fp, fn=fn)
    assert means["right"] >= 0.93
    assert means["tests"] <= 40


def test_of_unknown_rates(seed: int) -> None:
    means = trials(40, seed, known=False)
    assert means["right"] >= 0.9
    assert means["tests"] <= 26


def test_several_at_once_take_fewer_rounds(seed: int) -> None:
    means = trials(40, seed, jobs=7)
    assert means["right"] >= 0.9
    assert means["rounds"] <= 6


def test_a_repeatable_oracle_is_asked_once_each_and_gets_a_range(seed: int) -> None:
    means = trials(100, seed, repeatable=True)
    assert means["held"] >= 0.9
    assert means["width"] <= 8
    assert means["tests"] <= 20


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_range_of_a_repeatable_oracle_in_2000_searches(seed: int, known: bool) -> None:
    means = trials(1000, seed, repeatable=True, known=known)
    assert means["held"] >= 0.93
    assert means["width"] <= 8


def ask_all(planner: Noisy, verdicts: list[Verdict]) -> set[int]:
    asked = set()
    while places := planner.ask():
        asked |= set(places)
        for place in places:
            planner.tell(place, verdicts[place])
    return asked


def test_untestable_and_skipped_places_stay_in_the_range() -> None:
    verdicts: list[Verdict] = ["clean"] * 10 + ["untestable"] * 3 + ["corrupt"] * 10
    planner = Noisy(23, Rate.false_positive(0.01), Rate.false_negative(0.01), skipped=[13])
    asked = ask_all(planner, verdicts)
    found = planner.found()
    assert (found.last_clean, found.first_corrupt) == (9, 14)
    assert not found.exact
    assert 13 not in asked
    assert found.skipped == (13,)
    assert set(found.untestable) <= {10, 11, 12}
    assert found.confidence is not None
    assert found.confidence >= 0.95


def test_none_is_corrupt() -> None:
    planner = Noisy(20, Rate.false_positive(0.05), Rate.false_negative(0.2), repeatable=False)
    ask_all(planner, ["clean"] * 20)
    found = planner.found()
    assert (found.last_clean, found.first_corrupt, found.undecided) == (19, None, False)
    assert found.likely[0][0] is None


def test_a_repeatable_oracle_cannot_exclude_that_none_is_corrupt() -> None:
    planner = Noisy(3, Rate.false_positive(0.2), Rate.false_negative(0.4))
    ask_all(planner, ["clean", "clean", "corrupt"])
    found = planner.found()
    assert found.undecided
    assert found.first_corrupt is None


def test_cheap_places_are_asked_before_dear_ones() -> None:
    dear = Noisy(9, costs=[1, 1, 1, 1, 100, 1, 1, 1, 1])
    assert Noisy(9).ask() != dear.ask()
    assert dear.ask() != (4,)


def test_the_edge_halves_what_a_sure_oracle_leaves() -> None:
    planner = Noisy(1023, Rate.false_positive(1e-6), Rate.false_negative(1e-6))
    (place,) = planner.ask()
    assert abs(place - 511) <= 1
    asked = ask_all(planner, ["clean"] * 700 + ["corrupt"] * 323)
    assert len(asked) <= math.ceil(math.log2(1024)) + 1
