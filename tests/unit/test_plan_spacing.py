"""Which checkpoints to keep: the least excess, by other means than the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard.archive.planning.latency import Latency, log_uniform, measured
from sdc_guard.archive.planning.spacing import (
    ages,
    best_count,
    excess,
    mean_excess,
    possible_count,
    root_integral,
)

SEED = 4711
DAY, HOUR = 86_400.0, 3600.0
LATE = log_uniform(0.05 * DAY, 100 * DAY)


def drawn(density: Latency, count: int, generator: np.random.Generator) -> np.ndarray:
    """Latencies drawn from a density."""
    cumulative = np.concatenate([[0.0], np.cumsum(density.mass)])
    return np.interp(generator.random(count), cumulative / cumulative[-1], density.edges)


def simulated(density: Latency, kept: np.ndarray, interval: float) -> tuple[float, float]:
    """Mean excess and share without a checkpoint, of corruptions seen at any moment."""
    generator = np.random.default_rng(SEED)
    latencies = drawn(density, 100_000, generator)
    phases = generator.random(latencies.size) * interval
    place = np.searchsorted(kept, latencies - phases)
    good = place < kept.size
    older = kept[np.minimum(place, kept.size - 1)] + phases - latencies
    return float(older[good].mean()), float(1 - good.mean())


def test_a_log_uniform_density_has_the_moments_of_its_formula() -> None:
    a, b = 0.05 * DAY, 100 * DAY
    factor = math.log(b / a)
    assert LATE.mass.sum() == pytest.approx(1)
    assert LATE.mean == pytest.approx((b - a) / factor, rel=1e-5)
    assert root_integral(LATE) == pytest.approx(2 * (math.sqrt(b) - math.sqrt(a)) / factor**0.5)
    share, moment = LATE.within(np.array([0.0, a, DAY, b, 2 * b]))
    assert share == pytest.approx([0, 0, math.log(DAY / a) / factor, 1, 1], abs=1e-5)
    assert moment == pytest.approx([0, 0, (DAY - a) / factor, LATE.mean, LATE.mean], rel=1e-4)


def test_measured_latencies_have_their_gaps_equally_likely() -> None:
    times = [5 * DAY, HOUR, 20 * DAY, 2 * DAY]
    density = measured(times)
    share, _ = density.within(np.array(sorted(times)))
    assert share == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.02)
    assert density.mass.sum() == pytest.approx(1)
    assert density.edges[0] == pytest.approx(HOUR / 2, rel=0.06)
    assert density.longest == pytest.approx(40 * DAY, rel=0.06)


@pytest.mark.parametrize("times", [[HOUR], [HOUR] * 5, [1.0, 1.0, 1e8]])
def test_few_or_equal_measured_latencies_are_a_density_too(times: list[float]) -> None:
    density = measured(times)
    assert np.isfinite(density.mass).all()
    assert (density.mass >= 0).all()
    assert (density.widths > 0).all()
    assert density.mass.sum() == pytest.approx(1)


@pytest.mark.parametrize(("incidents", "kept"), [(1.0, 303), (0.1, 96)])
def test_the_best_number_for_512_accelerators(incidents: float, kept: int) -> None:
    """512 at $2.50/h; $8.40 a month for a checkpoint; incidents a month; the month is 1 here."""
    work = 512 * 2.5 * 24 / DAY  # dollars a second
    assert round(best_count(LATE, incidents, work, 8.40)) == kept


@pytest.mark.parametrize("incidents", [1.0, 0.1])
def test_no_other_number_costs_much_less_than_the_best(incidents: float) -> None:
    work = 512 * 2.5 * 24 / DAY
    best = best_count(LATE, incidents, work, 8.40)
    interval = 600.0  # short, as the formula has it

    def cost(count: int) -> float:
        return incidents * work * excess(LATE, ages(LATE, count, interval), interval)[0] + (
            8.40 * count
        )

    grid = [round(best * factor) for factor in (0.5, 0.7, 0.85, 0.93, 1.07, 1.15, 1.4, 2)]
    assert cost(round(best)) <= 1.01 * min(map(cost, grid))
    assert max(map(cost, grid)) > 1.1 * cost(round(best))


@pytest.mark.parametrize("count", [12, 24, 96])
def test_no_other_spacing_of_as_many_loses_less(count: int) -> None:
    interval = 60.0
    others = count - 1
    found, missing = excess(LATE, ages(LATE, count, interval), interval)
    assert missing == 0
    # the formula holds for many; with 11 cells the density changes within a cell
    assert mean_excess(LATE, others) <= found <= (1 + 2 / others) * mean_excess(LATE, others)
    geometric = np.geomspace(0.05 * DAY, 100 * DAY, others)
    uniform = np.linspace(0, 100 * DAY, count)
    for kept in (np.concatenate([[0.0], geometric]), uniform):
        assert excess(LATE, kept, interval)[0] > 1.15 * found


def test_the_spacing_is_the_least_of_all_that_are_near_it() -> None:
    """Moving any of the ages makes the mean excess larger, or no smaller than it was."""
    generator = np.random.default_rng(SEED)
    kept = ages(LATE, 16, 60.0)
    least = excess(LATE, kept, 60.0)[0]
    for _ in range(50):
        moved = kept.copy()
        moved[1:-1] *= np.exp(0.15 * generator.normal(size=kept.size - 2))
        assert excess(LATE, np.sort(moved), 60.0)[0] > 0.99 * least, f"seed {SEED}"


@pytest.mark.parametrize("interval", [600.0, 6 * HOUR, 3 * DAY])
@pytest.mark.parametrize("count", [2, 12, 60])
def test_the_excess_is_what_is_simulated(count: int, interval: float) -> None:
    for density in (LATE, measured([HOUR, 2 * DAY, 30 * DAY])):
        kept = ages(density, count, interval)
        found, missing = excess(density, kept, interval)
        reference, without = simulated(density, kept, interval)
        assert found == pytest.approx(reference, rel=0.02), f"seed {SEED}"
        assert missing == pytest.approx(without, abs=0.01) == 0


def test_what_is_older_than_all_that_is_kept_is_told() -> None:
    """The last 12 of saves every 6 hours: ln(2.875/0.05)/ln(2000) are younger, or about."""
    kept = np.arange(12) * 6 * HOUR
    found, missing = excess(LATE, kept, 6 * HOUR)
    reference, without = simulated(LATE, kept, 6 * HOUR)
    assert missing == pytest.approx(without, abs=0.01) == pytest.approx(0.467, abs=0.01)
    assert found == pytest.approx(reference, rel=0.02)
    assert excess(LATE, np.zeros(1), 60.0) == (math.inf, 1.0)


def test_a_long_interval_leaves_fewer_to_keep() -> None:
    assert possible_count(LATE, 303, 1.0) == pytest.approx(303)
    assert possible_count(LATE, 303, 6 * HOUR) < 250
    # every save there is
    assert possible_count(LATE, 1e6, DAY) == pytest.approx(99.95, rel=1e-3)
    assert ages(LATE, 1000, DAY).tolist() == [age * DAY for age in range(101)]


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1, 1e6), st.floats(1.01, 1e5), st.integers(1, 400), st.floats(1, 1e6),
)  # fmt: skip
def test_ages_are_distinct_multiples_that_reach_far_enough(
    least: float, factor: float, count: int, interval: float
) -> None:
    density = log_uniform(least, least * factor)
    kept = ages(density, count, interval)
    assert kept[0] == 0
    assert 1 <= kept.size <= count
    places = kept / interval
    assert places == pytest.approx(np.round(places), rel=1e-12)
    assert (np.diff(np.round(places)) >= 1).all()
    if count > 1:
        assert density.longest * (1 - 1e-6) <= kept[-1] < density.longest + interval * 1.01
        assert excess(density, kept, interval)[1] < 1e-6
    if kept.size < count:
        assert (np.diff(np.round(places))[1:] == 1).all()


@pytest.mark.parametrize(
    ("count", "interval"), [(0, 1.0), (3, 0.0), (3, -1.0), (3, math.nan), (3, math.inf)]
)
def test_what_is_no_count_or_interval_is_refused(count: int, interval: float) -> None:
    with pytest.raises(ValueError, match="apart"):
        ages(LATE, count, interval)
