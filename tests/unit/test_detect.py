"""Detectors against hand-made streams whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.baseline import (
    RATIO_LIMIT,
    SIGMA_FLOOR,
    WARM_UP,
    WINDOW,
    Z_LIMIT,
    NormWindow,
)
from sdc_guard.detect.carried import DigestTable, changed
from sdc_guard.detect.incidents import QUIET_STEPS, IncidentBook
from sdc_guard.detect.sensor import StepSensor

LAYERS = 5
NONE_BAD = np.zeros(LAYERS, dtype=np.int64)


def stream(steps: int, seed: int = 1) -> np.ndarray:
    """Log-normal norms with σ = 0.15, the spread of a healthy run's layers."""
    print(f"seed {seed}")
    return np.exp(np.random.default_rng(seed).normal(0, 0.15, (steps, LAYERS)))


def warm_sensor(steps: int = 100) -> StepSensor:
    sensor = StepSensor([f"layer {number}" for number in range(LAYERS)])
    for step, norms in enumerate(stream(steps)):
        assert sensor.judge(step, norms, NONE_BAD, 2.0) == []
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
    alerts = sensor.judge(100, norms, NONE_BAD, 2.0)
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
        assert len(sensor.judge(step, norms, NONE_BAD, 2.0)) == 2 * LAYERS


def test_one_nonfinite_gradient_is_one_alert_and_leaves_the_baseline_unharmed() -> None:
    sensor = warm_sensor()
    bad, norms = NONE_BAD.copy(), np.ones(LAYERS)
    bad[2], norms[2] = 1, np.nan
    alerts = sensor.judge(100, norms, bad, 2.0)
    assert [(alert.detector, alert.layer) for alert in alerts] == [("nonfinite_gradient", 2)]
    for step in range(101, 150):
        assert sensor.judge(step, np.ones(LAYERS), NONE_BAD, 2.0) == []
    spike = np.ones(LAYERS)
    spike[2] = 1e3
    assert {alert.layer for alert in sensor.judge(150, spike, NONE_BAD, 2.0)} == {2}


def test_a_loss_that_stays_nonfinite_is_one_alert() -> None:
    sensor = warm_sensor()
    counts = [len(sensor.judge(100 + i, np.ones(LAYERS), NONE_BAD, float("nan"))) for i in range(9)]
    assert counts == [1] + [0] * 8


def test_true_zeros_and_missing_gradients_raise_nothing() -> None:
    sensor = StepSensor([f"layer {number}" for number in range(LAYERS)])
    for step in range(200):
        norms = np.array([0.0, np.nan, 1.0, 0.0, 1.0])
        with np.errstate(all="raise"):
            assert sensor.judge(step, norms, NONE_BAD, 0.0) == []


def test_a_constant_stream_does_not_divide_by_zero() -> None:
    window = NormWindow(1)
    for _ in range(WARM_UP):
        window.admit(np.ones(1), np.ones(1, dtype=bool))
    assert window.robust_z(np.ones(1)) == 0
    assert window.robust_z(np.full(1, np.e))[0] == pytest.approx(1 / SIGMA_FLOOR)


def test_changed_names_the_tensors_that_differ_and_passes_over_new_ones() -> None:
    old = DigestTable((("param", 0), ("param", 1)), np.array([[1, 2, 3], [4, 5, 6]]))
    new = DigestTable(
        (("param", 1), ("param", 0), ("exp_avg", 0)), np.array([[4, 5, 7], [1, 2, 3], [9, 9, 9]])
    )
    assert changed(old, new) == [(("param", 1), 1, 0)]
    assert changed(old, old) == []


def alert(step: int, severity: str = "suspect") -> Alert:
    return Alert(step, "norm_ratio", 0, "w", 40.0, 32.0, severity)  # type: ignore[arg-type] # because a plain str is enough here


def test_a_statistical_incident_opens_grows_and_closes() -> None:
    book = IncidentBook()
    assert [incident.opened for incident in book.update(10, [alert(10)])] == [10]
    assert book.update(11, [alert(11)]) == []  # the same kind again is no news
    for step in range(12, 11 + QUIET_STEPS):
        assert book.update(step, []) == []
    (closed,) = book.update(11 + QUIET_STEPS, [])
    assert (closed.number, closed.closed, closed.alerts, closed.proven) == (1, 61, 2, False)
    assert book.open is None
    assert book.update(200, [alert(200)])[0].number == 2


def test_a_proven_incident_does_not_close_by_quiet_and_claims_no_cause() -> None:
    book = IncidentBook()
    book.update(10, [alert(10)])
    (grown,) = book.update(11, [alert(11, "proven")])
    assert grown.proven
    assert grown.verdict == "undetermined"
    for step in range(12, 500):
        assert book.update(step, []) == []
    assert book.open is not None


def audit_alert(step: int, verdict: str, severity: str) -> Alert:
    return Alert(step, "step_audit", None, "", 1.0, 0.0, severity, {"verdict": verdict})


def test_an_audit_raises_the_verdict_of_an_incident() -> None:
    book = IncidentBook()
    (opened,) = book.update(5, [Alert(5, "norm_ratio", 0, "w", 60.0, 50.0, "suspect")])
    assert opened.verdict == "undetermined"
    (judged,) = book.update(5, [audit_alert(5, "data or software", "suspect")])
    assert judged.verdict == "data or software"
    assert not judged.proven
    (newer,) = book.update(6, [audit_alert(6, "intermittent", "proven")])
    assert newer.verdict == "intermittent"
    assert book.update(7, [audit_alert(7, "data or software", "suspect")]) == []
    assert book.update(8, [audit_alert(8, "undetermined", "suspect")]) == []


def test_an_audit_does_not_explain_what_it_did_not_see() -> None:
    book = IncidentBook()
    book.update(5, [Alert(5, "carried_digest", 0, "w", 1.0, 0.0, "proven")])
    book.update(6, [audit_alert(6, "data or software", "suspect")])
    assert book.open is not None
    assert book.open.verdict == "undetermined"
