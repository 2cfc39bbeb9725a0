"""The statistical sensor: what it names, what it takes in, and what it leaves alone."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from made_signals import LAYERS, NUMEL, alerts_of, each, healthy, one, scaled, sensor

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.double_centred import LASTING, WARM_UP
from sdc_guard.detect.incidents import IncidentBook
from sdc_guard.detect.sensor import NEW_ZEROS, STATISTICS, StepSensor
from sdc_guard.detect.sensor_alerts import MOST_ALERTS
from sdc_guard.detect.step_signals import StepSignals, layer_statistics, log_total_norm

WARM = 200


def warm(seed: int = 1, steps: int = WARM) -> StepSensor:
    fresh = sensor()
    assert alerts_of(fresh, healthy(steps, seed)) == []
    return fresh


def next_step(seed: int = 2) -> StepSignals:
    return next(each(healthy(1, seed)))


def told(alerts: list[Alert]) -> set[tuple[str, int | None]]:
    return {(alert.detector, alert.layer) for alert in alerts}


@pytest.mark.parametrize("factor", [30.0, 1 / 30])
def test_a_norm_that_jumps_either_way_is_seen_and_named(factor: float) -> None:
    signals = scaled(next_step(), 3, factor)
    (alert,) = warm().judge(WARM, signals, 2.0)
    assert (alert.detector, alert.layer, alert.layer_name) == ("gradient_norm", 3, "layer 3")
    assert alert.severity == "suspect"
    assert abs(alert.score) > alert.threshold
    assert (alert.score > 0) == (factor > 1)
    assert "norm is" in alert.detail["text"]


def test_one_element_that_holds_all_of_a_norm_is_seen() -> None:
    signals = next_step()
    signals.max_abs[5] = 0.9 * signals.norms[5]
    assert told(warm().judge(WARM, signals, 2.0)) == {("gradient_peak", 5)}


def test_zeroed_lanes_are_seen_although_the_norm_is_kept() -> None:
    signals = next_step()
    signals.zeros[7] = NUMEL // 32
    assert told(warm().judge(WARM, signals, 2.0)) == {("gradient_zeros", 7)}


def test_a_layer_of_nothing_but_zeros_is_seen_and_has_no_small_norm() -> None:
    signals = next_step()
    signals.norms[7] = signals.max_abs[7] = 0.0
    signals.zeros[7] = NUMEL
    watched = warm()
    for step in range(WARM, WARM + 10):
        with np.errstate(all="raise"):
            found = watched.judge(step, signals, 2.0)
        assert told(found) == {("gradient_zeros", 7)}


def test_what_a_layer_has_been_before_is_no_alarm_again() -> None:
    """An expert that at times no token is sent to, and a loss that at times is nothing."""
    watched, signals = warm(), healthy(60, 3)
    signals.norms[::9, 7] = signals.max_abs[::9, 7] = 0.0
    signals.zeros[::9, 7] = NUMEL
    found = alerts_of(watched, signals, first=WARM)
    assert [(alert.step, alert.layer) for alert in found] == [(WARM, 7)]


def test_steps_of_nothing_but_zeros_are_passed_over() -> None:
    watched, signals = warm(), healthy(200, 4)
    for start in range(0, 200, 20):
        some = slice(start, start + 6)
        signals.norms[some] = signals.max_abs[some] = 0.0
        signals.zeros[some] = NUMEL
    with np.errstate(all="raise"):
        assert alerts_of(watched, signals, lambda step: 0.0, first=WARM) == []


def test_a_shift_too_small_for_one_step_is_seen_as_it_lasts() -> None:
    watched = warm(steps=600)
    signals = scaled(healthy(60, 5), 4, 1.5)
    found = alerts_of(watched, signals, first=600)
    assert found
    assert {(alert.detector, alert.layer) for alert in found} == {("gradient_shift", 4)}
    assert found[0].step < 640


def test_a_shift_that_stands_is_one_incident_and_then_the_new_level() -> None:
    watched, book = warm(), IncidentBook()
    signals = scaled(healthy(600, 6), 2, 100.0)
    opened, last = set(), 0
    for step, of_step in enumerate(each(signals), WARM):
        alerts = watched.judge(step, of_step, 2.0)
        last = step if alerts else last
        opened |= {incident.number for incident in book.update(step, alerts)}
    assert opened == {1}
    assert last < WARM + LASTING + 5
    assert book.open is None


def test_an_anomaly_does_not_become_the_normal_while_it_is_one() -> None:
    watched = warm()
    before = watched.thresholds
    signals = scaled(next_step(), 2, 1e4)
    for step in range(WARM, WARM + LASTING - 1):
        assert ("gradient_norm", 2) in told(watched.judge(step, signals, 2.0))
    assert watched.thresholds["norm"] < 2 * before["norm"]


def test_one_nonfinite_gradient_is_one_alert_and_leaves_the_past_unharmed() -> None:
    watched, reference = warm(), warm()
    signals = next_step()
    signals.norms[2] = signals.max_abs[2] = math.nan
    signals.nonfinite[2] = 1
    assert told(watched.judge(WARM, signals, 2.0)) == {("nonfinite_gradient", 2)}
    reference.judge(WARM, next_step(), 2.0)
    scores, expected = watched.scores(next_step(9)), reference.scores(next_step(9))
    np.testing.assert_allclose(scores.norm, expected.norm, atol=0.5)


def test_a_loss_that_jumps_and_one_that_stays_nonfinite() -> None:
    watched = warm()
    assert told(watched.judge(WARM, next_step(), 200.0)) == {("loss", None)}
    counts = [len(watched.judge(WARM + 1 + i, next_step(i), math.nan)) for i in range(9)]
    assert counts == [1] + [0] * 8


def test_many_layers_at_once_are_one_alert_that_names_no_tensor() -> None:
    signals = scaled(next_step(), slice(10), np.geomspace(100, 5000, 10))
    (alert,) = warm().judge(WARM, signals, 2.0)
    assert (alert.detector, alert.layer) == ("gradient_norm", None)
    assert "10 of 24 layers at once" in alert.detail["text"]


def test_no_more_alerts_than_can_be_read() -> None:
    layers = 200
    watched, signals = sensor(layers), healthy(120, 8, layers)
    assert alerts_of(watched, signals) == []
    signals = scaled(next(each(healthy(1, 9, layers))), slice(40), 1e3)
    alerts = watched.judge(120, signals, 2.0)
    assert len(alerts) == MOST_ALERTS
    assert alerts[0].detail["text"].endswith("24 more layers")


def test_without_a_budget_only_what_is_not_finite_is_told() -> None:
    watched = sensor(budget=None)
    signals = healthy(100, 1)
    signals.norms[60] *= np.geomspace(1, 1e9, LAYERS)
    assert alerts_of(watched, signals, lambda step: 1e9 if step == 70 else 1.0) == []
    assert set(watched.thresholds.values()) == {math.inf}
    assert np.abs(watched.scores(next_step()).norm).max() < 10


def test_scores_are_what_judge_compares_and_take_nothing_in() -> None:
    watched = warm()
    signals = scaled(next_step(), 3, 30.0)
    first, second = watched.scores(signals, 2.0), watched.scores(signals, 2.0)
    np.testing.assert_array_equal(first.norm, second.norm)
    (alert,) = watched.judge(WARM, signals, 2.0)
    assert (alert.score, alert.threshold) == (first.norm[3], watched.thresholds["norm"])
    assert set(watched.thresholds) == {*STATISTICS, NEW_ZEROS}


def test_a_copy_goes_on_by_itself() -> None:
    watched = warm()
    twin = copy.deepcopy(watched)
    signals = healthy(300, 12)
    signals.norms[250, 4] *= 50
    assert alerts_of(twin, signals, first=WARM) == alerts_of(watched, signals, first=WARM) != []
    assert twin.thresholds == watched.thresholds


def test_nothing_is_judged_in_the_warm_up() -> None:
    signals = healthy(WARM_UP, 13)
    signals.norms[WARM_UP - 1, 4] *= 1e6
    assert alerts_of(sensor(), signals) == []


@pytest.mark.parametrize("layers", [0, 1, 2, 3, 4])
def test_few_layers_and_none(layers: int) -> None:
    watched = sensor(layers)
    signals = healthy(150, 14, layers) if layers else one(np.empty((150, 0)))
    assert alerts_of(watched, signals) == []
    if layers:
        spike = scaled(next(each(healthy(1, 15, layers))), 0, 1e3)
        assert ("gradient_norm", 0) in told(watched.judge(150, spike, 2.0))


def test_the_statistics_are_their_formulas() -> None:
    signals = one(np.array([[2.0, 0.0, math.nan, 3.0]]), zeros=np.array([[96, 100, 0, 0]]))
    found = layer_statistics(signals, np.array([100, 100, 100, 100]))[0]
    assert found[0, 0] == pytest.approx(math.log(2.0))
    assert found[1, 0] == pytest.approx(math.log(0.1))
    assert found[2, 0] == pytest.approx(math.log((96 + 4 + 5) / 4.5))
    assert np.isnan(found[:2, 1:3]).all()
    assert found[2, 1] == pytest.approx(math.log((100 + 4 + 5) / 0.5))
    assert math.isnan(found[2, 2])
    assert log_total_norm(signals)[0] == pytest.approx(math.log(13) / 2)
