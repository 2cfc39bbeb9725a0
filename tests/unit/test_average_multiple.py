"""The plain sensor against hand-made streams whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from made_signals import one

from sdc_guard.detect.average_multiple import AverageMultiple
from sdc_guard.detect.baseline import (
    RATIO_LIMIT,
    SIGMA_FLOOR,
    WARM_UP,
    WINDOW,
    Z_LIMIT,
    NormWindow,
)

LAYERS = 5
NONE_BAD = np.zeros(LAYERS, dtype=np.int64)


def stream(steps: int, seed: int = 1) -> np.ndarray:
    """Log-normal norms with σ = 0.15, the spread of a healthy run's layers."""
    print(f"seed {seed}")
    return np.exp(np.random.default_rng(seed).normal(0, 0.15, (steps, LAYERS)))


def warm_sensor(steps: int = 100) -> AverageMultiple:
    sensor = AverageMultiple([f"layer {number}" for number in range(LAYERS)])
    for step, norms in enumerate(stream(steps)):
        assert sensor.judge(step, one(norms), 2.0) == []
    return sensor


def test_robust_z_is_the_formula_over_the_window() -> None:
    norms = stream(WINDOW + 10)
    window = NormWindow(LAYERS)
    for row in norms[:-1]:
        window.admit(row, np.ones(LAYERS, dtype=bool))
    past = np.log(norms[-1 - WINDOW : -1])
    median = np.median(past, axis=0)
    sigma = np.maximum(1.4826 * np.median(np.abs(past - median), axis=0), SIGMA_FLOOR)
    expected = (np.log(norms[-1]) - median) / sigma
    np.testing.assert_allclose(window.robust_z(norms[-1]), expected, rtol=1e-12)
    ratio = norms[-1] / norms[-1 - WINDOW : -1].mean(axis=0)
    np.testing.assert_allclose(window.ratio(norms[-1]), ratio, rtol=1e-12)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_norm_that_jumps_either_way_is_seen_and_named(factor: float) -> None:
    sensor = warm_sensor()
    norms = np.ones(LAYERS)
    norms[3] *= factor
    alerts = sensor.judge(100, one(norms), 2.0)
    assert {alert.layer_name for alert in alerts} == {"layer 3"}
    names = {alert.detector for alert in alerts}
    assert names == ({"norm_ratio", "norm_robust_z"} if factor > 1 else {"norm_robust_z"})
    assert {alert.severity for alert in alerts} == {"suspect"}
    for alert in alerts:
        limit = RATIO_LIMIT if alert.detector == "norm_ratio" else Z_LIMIT
        assert alert.threshold == limit
        assert abs(alert.score) > limit


def test_an_anomaly_does_not_become_the_new_normal() -> None:
    sensor = warm_sensor()
    norms = np.full(LAYERS, 1e4)
    for step in range(100, 100 + 3 * WINDOW):
        assert len(sensor.judge(step, one(norms), 2.0)) == 2 * LAYERS


def test_one_nonfinite_gradient_is_one_alert_and_leaves_the_baseline_unharmed() -> None:
    sensor = warm_sensor()
    bad, norms = NONE_BAD.copy(), np.ones(LAYERS)
    bad[2], norms[2] = 1, np.nan
    alerts = sensor.judge(100, one(norms, nonfinite=bad), 2.0)
    assert [(alert.detector, alert.layer) for alert in alerts] == [("nonfinite_gradient", 2)]
    for step in range(101, 150):
        assert sensor.judge(step, one(np.ones(LAYERS)), 2.0) == []
    spike = np.ones(LAYERS)
    spike[2] = 1e3
    assert {alert.layer for alert in sensor.judge(150, one(spike), 2.0)} == {2}


def test_a_loss_that_stays_nonfinite_is_one_alert() -> None:
    sensor = warm_sensor()
    counts = [len(sensor.judge(100 + i, one(np.ones(LAYERS)), float("nan"))) for i in range(9)]
    assert counts == [1] + [0] * 8


def test_true_zeros_and_missing_gradients_raise_nothing() -> None:
    sensor = AverageMultiple([f"layer {number}" for number in range(LAYERS)])
    for step in range(200):
        norms = np.array([0.0, np.nan, 1.0, 0.0, 1.0])
        with np.errstate(all="raise"):
            assert sensor.judge(step, one(norms), 0.0) == []


def test_a_constant_stream_does_not_divide_by_zero() -> None:
    window = NormWindow(1)
    for _ in range(WARM_UP):
        window.admit(np.ones(1), np.ones(1, dtype=bool))
    assert window.robust_z(np.ones(1)) == 0
    assert window.robust_z(np.full(1, np.e))[0] == pytest.approx(1 / SIGMA_FLOOR)
