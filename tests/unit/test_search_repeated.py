"""An oracle that fails by chance: run several times, and both sides told apart."""

from __future__ import annotations

import random

import pytest

from forensics.search import Found, Verdict
from forensics.search.planner import drive
from forensics.search.repeated import Repeated


def search(
    seed: int, count: int, edge: int, *, before: float, after: float, runs: int = 10, jobs: int = 1
) -> Found:
    rng = random.Random(seed)

    def judge(place: int) -> Verdict:
        return "corrupt" if rng.random() < (after if place >= edge else before) else "clean"

    return drive(Repeated(count, runs), judge, jobs)


def located(found: Found) -> bool:
    return found.first_corrupt is not None and found.exact and found.stable


@pytest.mark.parametrize("jobs", [1, 4])
def test_an_oracle_that_misses_seven_of_ten(seed: int, jobs: int) -> None:
    found = [search(seed + i, 5, 2, before=0, after=0.3, jobs=jobs) for i in range(100)]
    right = [one for one in found if located(one) and one.first_corrupt == 2]
    assert len(right) >= 95
    # the only mistake left: the last checkpoint passes ten times, 0.7^10 = 2.8 % of searches
    assert all(one.first_corrupt is None for one in found if one not in right)


def test_an_oracle_that_fails_anywhere_has_no_boundary(seed: int) -> None:
    found = [search(seed + i, 20, 0, before=0, after=1 / 12) for i in range(300)]
    assert sum(map(located, found)) <= 0.05 * len(found)
    unstable = [one for one in found if not one.stable]
    assert len(unstable) >= 0.7 * len(found)  # else all runs at both ends passed, (11/12)^10 each


def test_a_sure_oracle_is_run_as_often_at_each_place() -> None:
    found = search(0, 64, 40, before=0, after=1, runs=3)
    assert (found.last_clean, found.first_corrupt, found.stable) == (39, 40, True)
    runs = {place: sum(p == place for p, _ in found.probes) for place, _ in found.probes}
    assert len(runs) <= 8
    assert set(runs.values()) == {3, 6}  # both sides of the bracket once more
    assert {place for place, number in runs.items() if number == 6} == {39, 40}


def test_all_corrupt_and_sure_is_no_chance() -> None:
    found = search(0, 9, 0, before=0, after=1)
    assert (found.last_clean, found.first_corrupt, found.stable) == (None, 0, True)


def test_a_failure_at_the_clean_side_sends_the_search_on() -> None:
    planner = Repeated(5, 2)
    said = {3: iter(["clean", "clean", "corrupt", "clean"])}

    def judge(place: int) -> Verdict:
        if place in said:
            return next(said[place], "clean")
        return "corrupt" if place >= 4 else "clean"

    found = drive(planner, judge)
    assert (found.last_clean, found.first_corrupt) == (2, 3)
    assert not found.stable  # 3 never failed again


def test_what_cannot_be_tested_is_run_once() -> None:
    found = drive(
        Repeated(7, 5),
        lambda place: "untestable" if place == 3 else "clean" if place < 5 else "corrupt",
    )
    assert (found.last_clean, found.first_corrupt) == (4, 5)
    assert found.untestable == (3,)
    assert sum(place == 3 for place, _ in found.probes) == 1


def test_remaining_counts_down() -> None:
    planner = Repeated(16, 4)
    left = planner.remaining()
    asked = 0
    while places := planner.ask():
        for place in places:
            planner.tell(place, "clean" if place < 9 else "corrupt")
            asked += 1
    assert asked <= left
    assert planner.remaining() == 0
