"""How often to save: published values, the exact optimum, and a simulation as reference."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.archive.planning.intervals import (
    choose,
    daly,
    in_domain,
    lost_work,
    useful_share,
    young,
)

SEED = 20260
MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("mtbf", "published"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)]
)
def test_dalys_optimum_is_that_of_his_figures(mtbf: float, published: float) -> None:
    """Figures 3, 4 and 5 of Daly (2006): checkpoints of 5 minutes; minutes."""
    digits = 1 if published < 10 else 0
    assert round(daly(5 * MINUTE, mtbf) / MINUTE, digits) == published


def test_youngs_interval_is_that_of_its_formula() -> None:
    assert young(50.0, 10_000.0) == 1000.0


def exact(stall: float, mtbf: float) -> float:
    """The root of (1 − τ/M)·e^((τ+δ)/M) = 1, where the derivative of the wall time is 0."""
    low, high = 0.0, mtbf
    for _ in range(200):
        middle = (low + high) / 2
        if (1 - middle / mtbf) * math.exp((middle + stall) / mtbf) > 1:
            low = middle
        else:
            high = middle
    return low


@given(st.floats(1e-6, 0.5), st.floats(10, 1e7))
def test_dalys_optimum_is_near_the_exact_one_in_its_domain(ratio: float, mtbf: float) -> None:
    assert daly(ratio * mtbf, mtbf) == pytest.approx(exact(ratio * mtbf, mtbf), rel=0.01)


def test_where_checkpoints_outlast_the_time_between_failures() -> None:
    assert daly(200.0, 100.0) == daly(300.0, 100.0) == 100.0
    assert in_domain(49.9, 100.0)
    assert not in_domain(50.0, 100.0)


def simulated(
    work: float, stall: float, write: float, recovery: float, gaps: np.ndarray
) -> tuple[float, float]:
    """Share of useful time, and mean loss, of a training that fails after each of the gaps.

    Walks from checkpoint to checkpoint. A checkpoint counts `write` after its stall.
    """
    done, lost = 0.0, []
    for gap in gaps.tolist():
        clock, complete, pending = recovery, 0, []
        if gap < recovery:
            continue
        started = newest = clock
        while True:
            clock += work + stall
            if clock > gap:
                break
            pending.append(clock)
        for taken in pending:
            if taken + write <= gap:
                complete, newest = complete + 1, taken
        done += complete * work
        if complete:
            lost.append(gap - newest)
        elif write == 0:
            lost.append(gap - started)
    return done / float(gaps.sum()), float(np.mean(lost))


# M, R, δ, W: seconds. The last but one is Daly's figure 5, the last writes in the background
SETTINGS = [
    (6 * HOUR, 300.0, 60.0, 0.0),
    (15 * MINUTE, 600.0, 300.0, 0.0),
    (2 * HOUR, 300.0, 5.0, 200.0),
]


@pytest.mark.parametrize(("mtbf", "recovery", "stall", "write"), SETTINGS)
def test_the_chosen_interval_wastes_little_more_than_the_best_of_a_grid(
    mtbf: float, recovery: float, stall: float, write: float
) -> None:
    gaps = np.random.default_rng(SEED).exponential(mtbf, 15_000)
    chosen = choose(stall, mtbf, write or stall)
    wasted = {
        factor: 1 - simulated(chosen.work * factor, stall, write, recovery, gaps)[0]
        for factor in (0.4, 0.6, 0.75, 0.87, 1.0, 1.15, 1.3, 1.7, 2.5)
        if chosen.work * factor + stall >= write
    }
    assert wasted[1.0] <= 1.02 * min(wasted.values()), f"seed {SEED}"
    assert max(wasted.values()) > 1.05 * wasted[1.0], "the grid is too narrow to tell"


@pytest.mark.parametrize(("mtbf", "recovery", "stall", "write"), SETTINGS)
def test_the_formulas_say_what_is_simulated(
    mtbf: float, recovery: float, stall: float, write: float
) -> None:
    gaps = np.random.default_rng(SEED + 1).exponential(mtbf, 30_000)
    chosen = choose(stall, mtbf, write or stall)
    useful, lost = simulated(chosen.work, stall, write, recovery, gaps)
    # a standard error is up to 1/√30,000 of it, where intervals are short against M
    formula = useful_share(chosen.work, stall, mtbf, recovery, write)
    assert useful == pytest.approx(formula, rel=0.02), f"seed {SEED + 1}"
    if write == 0:
        assert lost == pytest.approx(lost_work(chosen.period, mtbf), rel=0.02)
    else:  # of failures with a complete checkpoint since the last one: W ..., W + period
        assert lost == pytest.approx(lost_work(chosen.period, mtbf, write), rel=0.02)


def test_a_write_finishes_before_the_next_one_begins() -> None:
    """√(2·1·360) = 26.8 s, and Daly's terms: an optimum of 27 s and a write of 42 s."""
    tight = choose(1.0, 360.0, 42.0)
    assert tight.limited
    assert tight.period == 42.0
    assert tight.best_period == pytest.approx(27.2, abs=0.05)
    wide = choose(1.0, 360.0, 27.0)
    assert not wide.limited
    assert wide.period == wide.best_period


@pytest.mark.parametrize("period", [41.0, 1.0, 0.5])
def test_a_period_too_short_for_its_checkpoint_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match="shorter"):
        choose(1.0, 360.0, 42.0, period)


@given(st.floats(1e-3, 1e5), st.floats(1, 1e9))
def test_the_loss_is_about_half_of_a_period_and_never_more(period: float, mtbf: float) -> None:
    lost = lost_work(period, mtbf)
    assert 0 < lost <= period / 2 * (1 + 1e-6)
    if period < 1e-3 * mtbf:
        assert lost == pytest.approx(period / 2, rel=1e-3)


@pytest.mark.parametrize("ratio", [9.9e-5, 1.1e-4])
def test_the_loss_is_exact_where_its_formula_cancels(ratio: float) -> None:
    exponent = Decimal(ratio).exp() - 1
    assert lost_work(ratio, 1.0) == pytest.approx(float(1 - Decimal(ratio) / exponent), rel=1e-7)


def test_no_share_is_left_of_intervals_beyond_all_failures() -> None:
    assert useful_share(1e9, 1.0, 1.0, 1.0) == 0.0
    assert 0 <= useful_share(1.0, 1.0, 1.0, 1e6) < 1e-300
