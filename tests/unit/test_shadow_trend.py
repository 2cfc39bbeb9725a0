"""The shadow loss against its own past."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdc_guard import Guard
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.shadow_trend import (
    NEW_LEVEL,
    WARM_UP,
    WINDOW,
    ShadowTrend,
    fitted,
    rise_limit,
)

NOISE = 0.01  # of the loss
LR = 1e-3
# Healthy losses by the evaluation.
SHAPES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "power to a floor": lambda t: 0.5 + 5 / (t + 1),
    "root": lambda t: 2 + 8 * (t / 3 + 1) ** -0.5,
    "power to nothing": lambda t: 5 * (t / 10 + 1) ** -2,
    "exponential to a floor": lambda t: 1 + 4 * np.exp(-t / 30),
    "exponential to nothing": lambda t: 4 * np.exp(-t / 20),
    "two exponentials": lambda t: 0.3 + 2 * np.exp(-t / 5) + np.exp(-t / 80),
    "stretched exponential": lambda t: 0.36 + 0.4 * np.exp(-((t + 1) ** 0.4)),
    "logarithm": lambda t: 5 - 0.5 * np.log1p(t / 4),
    "line, then flat": lambda t: np.maximum(3 - 0.02 * t, 1),
    "plateaus": lambda t: 3 - np.tanh((t - 80) / 10) - 0.5 * np.tanh((t - 250) / 15),
    "cosine": lambda t: 3 + 2 * np.cos(np.pi * np.minimum(t / 300, 1)),
    "below zero": lambda t: -3 + 4 * np.exp(-t / 40),
    "flat": lambda t: np.full_like(t, 2),
}


def wavering(seed: int, n: int, rho: float) -> NDArray[np.float64]:
    """An AR(1) series of unit variance."""
    steps = np.random.default_rng(seed).normal(size=n)
    series = np.zeros(n)
    for i in range(1, n):
        series[i] = rho * series[i - 1] + math.sqrt(1 - rho * rho) * steps[i]
    return series


def healthy(seed: int, n: int, rho: float = 0.5) -> NDArray[np.float64]:
    """A loss that falls as a power of the step, and wavers."""
    print("seed", seed)
    falling = 2 + 8 * (np.arange(n) / 3 + 1) ** -0.6
    return falling * (1 + NOISE * wavering(seed, n, rho))


def judged(trend: ShadowTrend, losses: NDArray[np.float64], *, lr: float = LR) -> list[Alert]:
    return [alert for step, x in enumerate(losses) for alert in trend.judge(step, float(x), lr)]


def test_outliers_do_not_move_the_line() -> None:
    line = 5.0 - 0.25 * np.arange(40)
    line[::5] += 1e6
    following, sigma = fitted(line)
    assert following == pytest.approx(5.0 - 0.25 * 40)
    assert sigma == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_sigma_is_that_of_the_sum_of_correlated_losses(rho: float) -> None:
    found = [fitted(10 + wavering(seed, WINDOW, rho))[1] for seed in range(300)]
    # of a strong correlation 64 losses tell too little
    assert np.median(found) == pytest.approx(math.sqrt((1 + rho) / (1 - rho)), rel=0.3)


def test_the_limit_of_a_rise_is_crossed_as_often_as_the_budget_says() -> None:
    seed, runs, limit = 7, 2000, rise_limit(1e-3)
    print("seed", seed)
    steps = np.random.default_rng(seed).normal(-0.5, 1.0, size=(4000, runs))
    total, length = np.zeros(runs), np.full(runs, len(steps))
    for i, step in enumerate(steps):
        total = np.maximum(total + step, 0)
        length[(total > limit) & (length == len(steps))] = i
    # exponential lengths, cut off at 4,000
    mean = length.sum() / (length < len(steps)).sum()
    assert mean == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_a_healthy_loss_is_silent_for_2000_evaluations(seed: int, rho: float) -> None:
    assert judged(ShadowTrend(), healthy(seed, 2000, rho)) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_loss_that_flattens_is_silent(shape: str) -> None:
    falls = SHAPES[shape](np.arange(400.0))
    assert judged(ShadowTrend(), falls) == []  # without noise there is no σ but the least
    for seed, noise, rho in (
        (900, 1e-6, 0.0),
        (901, 1e-3, 0.5),
        (902, 0.01, 0.5),
        (903, 0.05, 0.0),
    ):
        print("seed", seed)
        assert judged(ShadowTrend(), falls * (1 + noise * wavering(seed, 400, rho))) == []


@given(st.lists(st.floats(0, 1e6), min_size=60, max_size=120), st.floats(-1e6, 1e6))
def test_a_loss_that_never_rises_raises_nothing(falls: list[float], start: float) -> None:
    assert judged(ShadowTrend(), start - np.cumsum(falls)) == []


@pytest.mark.parametrize("shape", ["exponential to a floor", "flat", "line, then flat"])
@pytest.mark.parametrize("noise", [0.0, 1e-3, 3e-3])
def test_a_rise_of_a_few_percent_within_15_evaluations_is_told(shape: str, noise: float) -> None:
    losses = SHAPES[shape](np.arange(320.0)) * (1 + noise * wavering(910, 320, 0.5))
    losses *= 1 + 0.04 * np.clip((np.arange(320) - 249) / 15, 0, 1)
    first = judged(ShadowTrend(), losses)[0]
    assert 250 <= first.step < 275
    assert first.detail["level"] < first.detail["loss"]


def test_a_rise_that_stands_is_told_once_and_another_one_again() -> None:
    rate = 1 + 0.004 * np.arange(400)
    losses = np.concatenate([np.ones(100), rate, np.full(300, rate[-1]), rate[-1] * rate[:60]])
    losses *= 1 + 0.002 * wavering(911, len(losses), 0.3)
    (first, second) = judged(ShadowTrend(), losses)
    assert 100 <= first.step < 150
    assert 800 <= second.step < 850


def test_a_loss_that_rises_steadily_is_one_rise_and_no_jump() -> None:
    losses = 1.01 ** np.arange(300.0)
    (alert,) = judged(ShadowTrend(), losses)
    assert alert.detector == "shadow_rise"


@pytest.mark.parametrize("seed", range(920, 923))
def test_the_bend_where_a_rise_begins_does_not_hide_it(seed: int) -> None:
    print("seed", seed)
    losses = 2 * (1 + NOISE * wavering(seed, 320, 0.5))
    losses *= 1 + 0.1 * np.clip((np.arange(320) - 249) / 15, 0, 1)
    assert 250 <= judged(ShadowTrend(), losses)[0].step < 275


def test_the_words_of_a_rise_name_losses_that_were_seen() -> None:
    losses = 0.36 + 0.5 * np.exp(-np.arange(300.0) / 25)
    losses[250:] *= 1 + 0.002 * np.arange(50)
    (alert,) = judged(ShadowTrend(), losses)
    seen = losses[: alert.step + 1]
    assert alert.detail["loss"] == losses[alert.step]
    assert seen.min() <= alert.detail["level"] <= seen.max()
    assert "overfitting" in alert.detail["text"]


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_poisoning_is_told_as_that(seed: int) -> None:
    losses = healthy(seed, 420)
    losses[300:] *= 1 + 0.3 * NOISE * np.arange(120)
    trend = ShadowTrend()
    assert judged(trend, losses[:300]) == []
    alerts = [a for step in range(300, 420) for a in trend.judge(step, float(losses[step]), LR)]
    (first,) = alerts  # the rise goes on
    assert (first.detector, first.severity, first.layer) == ("shadow_rise", "suspect", None)
    assert first.score > first.threshold
    assert first.step < 300 + 60
    assert first.detail["level"] < first.detail["loss"]


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_is_told_once_while_it_stays_and_does_not_become_the_past(seed: int) -> None:
    losses = healthy(seed, 220)
    losses[200 : 200 + NEW_LEVEL - 2] *= 1.5
    (alert,) = judged(ShadowTrend(), losses)
    assert (alert.step, alert.detector, alert.severity) == (200, "shadow_jump", "suspect")
    again = np.concatenate([losses, losses[200:206]])
    assert [alert.step for alert in judged(ShadowTrend(), again)] == [200, 220]


def test_a_level_that_stays_is_told_once() -> None:
    losses = healthy(11, 600)
    losses[200:] *= 1.5
    assert [alert.step for alert in judged(ShadowTrend(), losses)] == [200]


def test_what_is_not_finite_is_one_standing_alert_and_never_admitted() -> None:
    losses = healthy(5, 300)
    bad = losses.copy()
    one, other = ShadowTrend(), ShadowTrend()
    for step, loss in enumerate(bad):
        if step in (3, 100, 101, 200):
            found = [other.judge(step, value) for value in (math.nan, math.inf)]
            assert [len(alerts) for alerts in found] == [1, 0]
            assert found[0][0].detector == "shadow_nonfinite"
        assert one.judge(step, float(loss)) == other.judge(step, float(loss)) == []
    assert one._past == other._past
    assert one._sum == other._sum


def test_a_warm_restart_of_the_learning_rate_is_no_alarm() -> None:
    losses = healthy(3, 400)
    losses[200:] *= 1 + 0.3 * np.exp(-np.arange(200) / 10)
    trend = ShadowTrend()
    rates = np.concatenate([np.geomspace(1e-3, 1e-4, 200)] * 2)
    alerts = [a for step in range(400) for a in trend.judge(step, losses[step], rates[step])]
    assert alerts == []
    assert judged(ShadowTrend(), losses) != []  # without the rate it cannot be told apart


@pytest.mark.parametrize("level", [0.0, 1e-30, -3.0, 1e30])
def test_a_constant_loss_divides_nothing_by_zero(level: float) -> None:
    assert judged(ShadowTrend(), np.full(200, level)) == []


def test_before_it_is_warm_nothing_is_judged_and_without_a_budget_only_what_is_not_finite() -> None:
    losses = healthy(2, 300)
    losses[WARM_UP - 1] *= 100
    assert judged(ShadowTrend(), losses[: WARM_UP + 1]) == []
    losses[200:] *= 100
    losses[250] = math.nan
    assert [a.detector for a in judged(ShadowTrend(None), losses)] == ["shadow_nonfinite"]


def test_a_guard_tells_of_weights_that_became_worse_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(64, 4)
    batch = x, x @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_fn(model: torch.nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(pair[0]), pair[1])

    heard: list[Alert] = []
    with Guard(
        model, optimizer, run=tmp_path / "run", shadow=(batch, loss_fn), shadow_every=1,
        digest_budget=0, invariants_every=None, probe_every=None, on_alert=heard.append,
    ):  # fmt: skip
        for step in range(40):
            if step == 36:
                model.weight.data += 30.0
            loss_fn(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [alert.step for alert in heard if alert.detector == "shadow_jump"] == [36]
