"""The limits of Adam's moments against their formula and the gradients that attain them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optimizer_runs import betas

from sdc_guard.detect.adam_limits import EARLIER, ROUNDING, MomentLimit, moment_limit, step_slack

EXACT = ROUNDING["float64"]
BETAS = [(0.9, 0.999), (0.9, 0.95), (0.95, 0.99), (0.5, 0.999), (0.0, 0.9)]


def moments(gradients: np.ndarray, beta1: float, beta2: float) -> tuple[float, float]:
    m = v = 0.0
    for g in gradients.tolist():
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return m, v


@pytest.mark.parametrize(
    ("beta1", "beta2", "c"), [(0.9, 0.999, 7.27), (0.9, 0.95, 1.165), (0.0, 0.99, 10.0)]
)
def test_the_constants(beta1: float, beta2: float, c: float) -> None:
    # for β₁ = 0 it is |g| against √((1−β₂)g²)
    assert math.sqrt(moment_limit(beta1, beta2, EXACT).square) == pytest.approx(c, rel=5e-4)


@pytest.mark.parametrize(("beta1", "beta2"), BETAS)
def test_the_extremal_gradients_attain_the_limit(beta1: float, beta2: float) -> None:
    steps = 300
    growth = beta2 / beta1 if beta1 else 1e3
    gradients = np.array([growth ** min(i - steps, 0) for i in range(steps + 1)])
    m, v = moments(gradients, beta1, beta2)
    limit = math.sqrt(moment_limit(beta1, beta2, EXACT).square)
    assert 0.99 * limit < m / math.sqrt(v) <= limit


@given(betas(), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_no_gradients_exceed_the_limit(pair: tuple[float, float], gradients: list[float]) -> None:
    m, v = moments(np.array(gradients), *pair)
    limit = moment_limit(*pair, EXACT)
    assert abs(m) <= math.sqrt(limit.square * (v + limit.v_lost)) + limit.m_lost


@given(
    st.lists(st.tuples(betas(), st.booleans()), min_size=1, max_size=12),
    st.floats(0, EARLIER),
)
def test_changing_betas_and_updates_left_out_stay_below_the_joined_limit(
    updates: list[tuple[tuple[float, float], bool]], start: float
) -> None:
    # the largest m²/v that any gradients can bring about follows C ← C·β₁²/β₂ + (1−β₁)²/(1−β₂)
    joined: MomentLimit | None = None
    reachable, count = start, 0
    for (beta1, beta2), left_out in updates:
        limit = moment_limit(beta1, beta2, EXACT)
        joined = limit if joined is None else joined.joined(limit)
        if not left_out:
            reachable = reachable * beta1**2 / beta2 + (1 - beta1) ** 2 / (1 - beta2)
            count += 1
    assert joined is not None
    assert reachable <= (joined.square + start * joined.ratio**count) * (1 + 1e-9)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.81), (0.99, 0.95), (0.9, 0.0), (0.0, 0.0)])
def test_nothing_is_bounded_without_the_condition(beta1: float, beta2: float) -> None:
    limit = moment_limit(beta1, beta2, EXACT)
    assert not limit.bounded
    assert step_slack(limit, beta1, beta2, 1e-8, EXACT) is None


def test_slack_of_rounding() -> None:
    c = {name: math.sqrt(moment_limit(0.9, 0.999, r).square) for name, r in ROUNDING.items()}
    assert c["float32"] / c["float64"] == pytest.approx(1, abs=1e-4)
    assert c["bfloat16"] == pytest.approx(7.59, abs=0.005)
    assert c["float16"] < c["bfloat16"]
    # too coarse for a long memory
    assert moment_limit(0.995, 0.9999, ROUNDING["float32"]).bounded
    assert not moment_limit(0.995, 0.9999, ROUNDING["bfloat16"]).bounded


@pytest.mark.parametrize("name", ROUNDING)
def test_roundings_are_those_of_torch(name: str) -> None:
    info = torch.finfo(getattr(torch, name))
    rounding = ROUNDING[name]
    assert rounding.store == info.eps / 2
    assert rounding.work == min(info.eps, torch.finfo(torch.float32).eps) / 2
    assert rounding.tiny == (info.smallest_normal * info.eps if name == "float16" else info.tiny)


def test_a_step_is_not_bounded_where_underflow_matters() -> None:
    half, single = ROUNDING["float16"], ROUNDING["float32"]
    assert step_slack(moment_limit(0.9, 0.999, half), 0.9, 0.999, 1e-8, half) is None
    assert step_slack(moment_limit(0.9, 0.999, single), 0.9, 0.999, 0.0, single) is None
    assert step_slack(moment_limit(0.9, 0.999, single), 0.9, 0.999, 1e-20, single) is None
    slack = step_slack(moment_limit(0.9, 0.999, single), 0.9, 0.999, 1e-8, single)
    assert slack is not None
    assert slack.relative < 1e-3
    assert slack.lost_per_c < 1e-6
