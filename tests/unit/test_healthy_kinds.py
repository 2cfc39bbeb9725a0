"""What healthy trainings of other kinds than the sample GPT show, on made streams: no alarm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_signals import LAYERS, alerts_of, each, healthy, sensor
from peer_windows import logs, values_of

from sdc_guard.detect.peers import PeerJudge
from sdc_guard.detect.seen_range import SeenRange
from sdc_guard.detect.sensor import StepSensor
from sdc_guard.detect.shadow_trend import ShadowTrend
from sdc_guard.detect.step_signals import low_floors

ROWS, WIDTH = 64, 64


@pytest.mark.parametrize("seed", [41, 42, 43])
def test_rows_that_a_batch_lacks_are_no_alarm_and_half_of_all_are(seed: int) -> None:
    signals = healthy(1000, seed)
    absent = np.random.default_rng(seed).poisson(0.05, 1000)
    signals.zeros[:, 3] = np.minimum(absent, ROWS) * WIDTH
    watched = sensor()
    assert alerts_of(watched, signals) == []
    broken = next(each(healthy(1, seed + 100)))
    broken.zeros[3] = ROWS * WIDTH // 2
    assert [(a.detector, a.layer) for a in watched.judge(1000, broken, 2.0)] == [
        ("gradient_zeros", 3)
    ]


def test_the_range_reaches_beyond_what_was_seen_by_its_width() -> None:
    near, exact = SeenRange((1,), beyond=1.0), SeenRange((1,))
    values = np.array([[1.0], [4.0]])
    assert not near.holds(values).any()
    near.take(values, None)
    exact.take(values, None)
    assert near.holds(np.array([[-2.1], [-1.9], [6.9], [7.1]]))[:, 0].tolist() == [0, 1, 1, 0]
    assert exact.holds(np.array([[0.9], [1.0], [4.0], [4.1]]))[:, 0].tolist() == [0, 1, 1, 0]


_VALUES = st.one_of(st.floats(-4, 4).map(lambda x: round(x, 1)), st.just(math.nan))


@given(
    st.lists(
        st.lists(st.tuples(_VALUES, _VALUES, st.booleans()), min_size=1, max_size=9),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0.0, 1.0]),
)
def test_many_steps_at_once_are_as_one_by_one(
    blocks: list[list[tuple[float, float, bool]]], beyond: float
) -> None:
    together, apart = SeenRange((2,), beyond=beyond), SeenRange((2,), beyond=beyond)
    for block in blocks:
        values = np.array([[a, b] for a, b, _ in block])
        over = np.array([[alarm, False] for _, _, alarm in block]) & ~np.isnan(values)
        given_over = over if over.any() else None
        held = together.held_and_taken(values, given_over)
        expected = []
        for step in range(len(values)):
            row = slice(step, step + 1)
            expected.append(apart.holds(values[row])[0])
            apart.take(values[row], None if given_over is None else over[row])
        assert held.tolist() == np.array(expected).tolist()
        for one, two in zip(together.remember(), apart.remember(), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("seed", [44, 45])
def test_a_loss_near_zero_is_no_alarm_and_a_spike_is(seed: int) -> None:
    """Squares of one example: the log of a χ² of one degree has a long tail downwards."""
    losses = np.random.default_rng(seed).normal(size=1000) ** 2
    watched = sensor()
    assert alerts_of(watched, healthy(1000, seed), lambda step: float(losses[step])) == []
    found = watched.judge(1000, next(each(healthy(1, seed + 100))), 1e5)
    assert [alert.detector for alert in found] == ["loss"]


@pytest.mark.parametrize("seed", [46, 47])
def test_a_loss_that_passes_zero_is_judged_upwards(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.1, 600)
    losses = 2.0 - 0.01 * np.arange(600) + noise
    watched = sensor()
    assert alerts_of(watched, healthy(600, seed), lambda step: float(losses[step])) == []
    (one,) = watched.judge(600, next(each(healthy(1, seed + 100))), 1e4)
    assert one.detector == "loss"


def test_a_loss_below_zero_is_no_quiet_step_before_it_is_known_to_occur() -> None:
    watched, signals = sensor(), healthy(40, 48)
    assert watched.admit_quiet(signals, [1.0] * 40)
    assert not watched.admit_quiet(signals, [-1.0] * 40)
    assert watched.judge(40, next(each(signals)), -1.0) == []
    assert watched.admit_quiet(signals, [-1.0] * 40)


@pytest.mark.parametrize("period", [4, 10, 14])
def test_a_loss_of_two_levels_is_no_alarm_for_long(period: int) -> None:
    """Two tasks in turn, which part after 150 steps."""
    noise = np.exp(np.random.default_rng(period).normal(0, 0.05, 1200))

    def loss(step: int) -> float:
        apart = step >= 150 and step % period < period // 2
        return float(noise[step] * (100 if apart else 1))

    alerts = alerts_of(sensor(), healthy(1200, 49), loss)
    assert {alert.detector for alert in alerts} <= {"loss"}
    assert all(alert.step < 150 + 128 for alert in alerts)


def test_a_gradient_of_one_element_may_pass_zero() -> None:
    seed, layers = 50, 3
    rng = np.random.default_rng(seed)
    signals = healthy(3000, seed, layers)
    signals.norms[:, 0] = signals.max_abs[:, 0] = np.abs(rng.normal(size=3000))
    watched = StepSensor(["bias", "a", "b"], [1, 4096, 4096])
    assert alerts_of(watched, signals) == []
    assert low_floors(np.array([1, 4, 4096])).tolist() == [4.0, 1.0, 0.0]


def test_an_expert_without_tokens_is_two_tensors_at_once_and_a_lost_one_is_one() -> None:
    watched = sensor()
    assert alerts_of(watched, healthy(200, 51)) == []
    unused = next(each(healthy(1, 52)))
    unused.norms[4:6] = unused.max_abs[4:6] = 0.0
    unused.zeros[4:6] = 4096
    assert watched.judge(200, unused, 2.0) == []
    lost = next(each(healthy(1, 53)))
    lost.norms[9], lost.max_abs[9], lost.zeros[9] = 0.0, 0.0, 4096
    assert [(a.detector, a.layer) for a in watched.judge(201, lost, 2.0)] == [("gradient_zeros", 9)]


def test_a_held_out_loss_that_overfits_is_told_once_and_again_after_it_was_back() -> None:
    rng = np.random.default_rng(54)
    rise, fall = np.linspace(1, 4, 400), 0.8 + 3.2 * np.exp(-np.arange(400) / 60)
    again = np.linspace(0.8, 2, 200)
    course = np.concatenate([np.full(80, 1.0), rise, fall, np.full(150, 0.8), again])
    losses = course * np.exp(rng.normal(0, 0.01, len(course)))
    trend = ShadowTrend()
    alerts = [a for step, loss in enumerate(losses) for a in trend.judge(step, float(loss))]
    rises = [alert.step for alert in alerts if alert.detector == "shadow_rise"]
    assert len(rises) == 2
    assert 80 < rises[0] < 200
    assert rises[1] > 80 + 400 + 400 + 150
    assert "overfitting" in alerts[0].detail["text"]


@pytest.mark.parametrize("seed", [55, 56])
def test_layers_that_stand_out_together_on_a_rank_accuse_none_of_them(seed: int) -> None:
    """A batch of another size: one layer is over its limit, a third of the others nearly so."""
    values = values_of(logs(seed, 200, 4, LAYERS))
    values[150, 0, 2, :8] += 1.4
    values[150, 0, 2, 0] += math.log(200)
    judge = PeerJudge(4, LAYERS, 1e-4)
    found = judge.judge(range(200), values)
    assert [(one.kind, one.rank, one.layer) for one in found] == [("rank", 2, None)]
