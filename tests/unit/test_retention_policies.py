"""Which checkpoints a policy keeps: known answers, the measure it minimizes, and what always holds.

References: the excess by numerical integration, and the best of all single drops by trying each.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.archive.retention.latency import Floats, LogUniform, excess, least_excess
from sdc_guard.archive.retention.moments import Moments, interval_of
from sdc_guard.archive.retention.names import DEFAULT, NAMES
from sdc_guard.archive.retention.policies import POLICIES

H = 0.25  # days between saves


def left(policy: str, moments: Moments) -> list[int]:
    gone = set(POLICIES[policy](moments))
    return [place for place in range(len(moments.at)) if place not in gone]


def after(policy: str, saves: int, count: int, **more: float) -> list[int]:
    """Numbers of the saves that are there after so many, the policy applied at each."""
    there: list[int] = []
    for number in range(saves):
        there.append(number)
        moments = Moments(np.array(there) * H, count, H, numbers=tuple(there), **more)
        there = [there[place] for place in left(policy, moments)]
    return there


def integrated(ages: Floats, latency: LogUniform) -> tuple[float, float]:
    """The excess on a fine grid of latencies, each going back to the next older one."""
    edges = np.geomspace(latency.low, latency.high, 400_001)
    middle = np.sqrt(edges[1:] * edges[:-1])
    place = np.searchsorted(ages, middle)
    covered = place < len(ages)
    back = ages[place[covered]] - middle[covered]
    return float(back.mean()), 1 - float(covered.mean())


def test_the_names_are_those_of_the_policies() -> None:
    assert tuple(POLICIES) == NAMES
    assert DEFAULT in NAMES


def test_the_excess_is_the_integral() -> None:
    latency = LogUniform(0.25, 100.0)
    for ages in ([0.0, 0.25, 1, 7, 30, 90], [0, 0.1, 150], [3.0], [0.0, 50, 100, 120]):
        found = excess(np.array(ages), latency)
        assert found == pytest.approx(integrated(np.array(ages), latency), rel=1e-4, abs=1e-5)
    assert excess(np.empty(0), latency) == (0.0, 1.0)


def test_the_bound_is_reached_where_checkpoints_may_lie_anywhere() -> None:
    # spacing ∝ √L puts them at squares; the sum of a grid comes near the integral from above
    latency = LogUniform(0.05, 100.0)
    assert least_excess(12, latency) == pytest.approx(2.0957, abs=1e-4)  # 4·9.7764²/7.6009/24
    for count in (50, 200):
        roots = np.linspace(np.sqrt(latency.low), np.sqrt(latency.high), count + 1)[1:]
        mean, uncovered = excess(roots**2, latency)
        bound = least_excess(count, latency)
        assert uncovered == pytest.approx(0, abs=1e-12)
        assert bound <= mean < bound * 1.05


def test_keep_last() -> None:
    assert after("keep-last", 20, 3) == [17, 18, 19]


def test_uniform() -> None:
    # four parts of ten days of forty saves each: their firsts, and the newest
    assert after("uniform", 180, 5, horizon=40.0) == [40, 80, 120, 160, 179]


def test_daily_weekly_monthly() -> None:
    # of nine: three months from day 0, three weeks, and days from the newest back; four saves a day
    found = after("daily-weekly-monthly", 4 * 100, 9)
    days = [number / 4 for number in found]
    assert days == [30, 60, 84, 90, 91, 97, 98, 99, 99.75]


def test_tower_of_hanoi() -> None:
    # as the ruler has it: the newest of each level, 16 of 2⁴, 8 of 2³, 12 of 2², 14 of 2, 15 of 1
    assert after("tower-of-hanoi", 17, 6) == [0, 8, 12, 14, 15, 16]
    # one place more than levels: the second newest of the highest level that has two
    assert after("tower-of-hanoi", 24, 7) == [0, 8, 12, 16, 20, 22, 23]


def test_greedy_keeps_what_trying_every_single_drop_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    latency = LogUniform(H, 100.0)
    for _ in range(40):
        at = np.sort(rng.choice(600, 9, replace=False)) * H
        (dropped,) = POLICIES["greedy-log"](Moments(at, 8, H))
        ages = (at[-1] - at)[::-1] + H  # at the next save

        def total(without: int, at: Floats = at, ages: Floats = ages) -> float:
            rest = np.delete(ages, len(at) - 1 - without)
            mean, uncovered = excess(rest, latency)
            return mean * (1 - uncovered)

        oldest = [0] if at[-1] - at[1] >= 100 else []
        best = min([*oldest, *range(1, len(at) - 1)], key=total)
        assert total(dropped) == pytest.approx(total(best), abs=1e-9)


def test_greedy_never_gives_up_the_only_one_that_is_old_enough() -> None:
    there: list[int] = []
    for number in range(900):
        there.append(number)
        moments = Moments(np.array(there) * H, 6, H)
        there = [there[place] for place in left("greedy-log", moments)]
        assert there[0] == 0 or (number - there[0]) * H >= 100
        assert there[-1] == number
    assert there[0] > 0  # it does let go of what is older than the horizon


MOMENTS = st.builds(
    lambda steps, count, held, horizon: Moments(
        np.array(sorted(steps)) * H,
        count,
        H,
        frozenset(place for place in held if place < len(steps)),
        horizon,
        tuple(sorted(steps)),
    ),
    st.sets(st.integers(0, 3000), min_size=0, max_size=40),
    st.integers(1, 15),
    st.sets(st.integers(0, 39), max_size=5),
    st.sampled_from([2.0, 30.0, 100.0]),
)


@pytest.mark.parametrize("policy", NAMES)
@given(moments=MOMENTS)
def test_the_count_is_kept_and_what_is_held_and_the_newest(policy: str, moments: Moments) -> None:
    gone = POLICIES[policy](moments)
    assert len(set(gone)) == len(gone) == max(0, len(moments.free) - moments.count)
    assert not set(gone) & moments.held
    if moments.free == list(range(len(moments.at))) and len(moments.at):
        assert len(moments.at) - 1 not in gone


@pytest.mark.parametrize("policy", NAMES)
@given(moments=MOMENTS, done=st.integers(0, 40))
def test_stopped_on_the_way_it_goes_on_to_the_same_end(
    policy: str, moments: Moments, done: int
) -> None:
    gone = POLICIES[policy](moments)
    before = gone[:done]
    rest = [place for place in range(len(moments.at)) if place not in before]
    now = Moments(
        moments.at[rest],
        moments.count,
        H,
        frozenset(new for new, place in enumerate(rest) if place in moments.held),
        moments.horizon,
        tuple(moments.number(place) for place in rest),
    )
    assert [rest[place] for place in POLICIES[policy](now)] == list(gone[done:])


@given(moments=MOMENTS, fewer=st.integers(1, 15))
def test_of_fewer_greedy_keeps_some_of_the_same(moments: Moments, fewer: int) -> None:
    more = POLICIES["greedy-log"](moments)
    less = POLICIES["greedy-log"](
        Moments(moments.at, min(fewer, moments.count), H, moments.held, moments.horizon)
    )
    assert less[: len(more)] == more


def test_the_interval_is_seen_at_the_newest_ones() -> None:
    assert interval_of(np.array([0.0, 40, 70, 80, 81]), 0.1) == 1.0
    assert interval_of(np.array([1.0, 1.0]), 0.1) == 0.1
    assert interval_of(np.empty(0), 0.1) == 0.1


def test_greedy_beats_the_others_at_what_it_is_for() -> None:
    latency = LogUniform(H, 100.0)
    mean = {}
    for policy in NAMES:
        there, found = [], []
        for number in range(640):
            there.append(number)
            moments = Moments(np.array(there) * H, 12, H, numbers=tuple(there))
            there = [there[place] for place in left(policy, moments)]
            if number * H > 101 and number % 5 == 0:
                covered, uncovered = excess((number - np.array(there[::-1])) * H, latency)
                found.append(covered * (1 - uncovered) + uncovered * number * H)
        mean[policy] = float(np.mean(found))
    assert min(mean, key=lambda name: mean[name]) == "greedy-log"
    assert mean["greedy-log"] < 1.5 * least_excess(12, latency)
