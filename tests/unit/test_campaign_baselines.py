"""The rules of others against values worked out by hand, or by what has published them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from scored_series import series_of

from sdc_guard.campaign.baselines import ema_z, frozen_maximum, max_jump, sigma_skip
from sdc_guard.campaign.baselines.average_multiple import AverageMultiple
from sdc_guard.campaign.baselines.ema_z import EmaZ
from sdc_guard.campaign.baselines.forest import Forest
from sdc_guard.campaign.baselines.frozen_maximum import FrozenMaximum
from sdc_guard.campaign.baselines.loss_only import LossOverMean, LossRobustZ
from sdc_guard.campaign.baselines.max_jump import MaxJump
from sdc_guard.campaign.baselines.nonfinite import Nonfinite
from sdc_guard.campaign.baselines.sensor import PARTS, SENSOR, SensorEntry
from sdc_guard.campaign.baselines.sigma_skip import SigmaSkip
from sdc_guard.campaign.bench import line_up, streams
from sdc_guard.detect.sensor import StepSensor
from sdc_guard.detect.step_signals import StepSignals

NAN, INF = math.nan, math.inf


def test_a_series_whose_arrays_do_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="max_abs has shape"):
        series_of([1.0, 2.0]).__class__(
            1, np.ones((2, 1)), np.ones((3, 1)), np.zeros((2, 1), np.int64),
            np.zeros((2, 1), np.int64), np.ones(2), np.ones(1, np.int64),
        )  # fmt: skip


def test_the_global_norm_leaves_missing_gradients_out_and_keeps_what_is_not_finite() -> None:
    series = series_of([[3.0, 4.0], [3.0, NAN], [3.0, NAN]], nonfinite=[[0, 0], [0, 0], [0, 1]])
    assert series.global_norms[:2].tolist() == [5.0, 3.0]
    assert math.isnan(series.global_norms[2])
    assert series.part(2, 3).norms.tolist()[0][0] == 3.0
    assert series.part(2, 9).steps.tolist() == [2, 3]


def test_the_frozen_maximum_is_that_of_the_first_hundred_and_stays() -> None:
    norms = [1.0] * 50 + [4.0] + [2.0] * 49 + [20.0, 100.0, 20.0]
    scores = FrozenMaximum().score(series_of(norms))[:, 0]
    assert np.isnan(scores[: frozen_maximum.SAMPLES]).all()
    assert scores[100:].tolist() == [5.0, 25.0, 5.0]  # over 4, also after a larger one


def test_the_frozen_maximum_passes_over_what_is_not_finite() -> None:
    norms = [NAN, INF] + [1.0] * 100 + [NAN, 3.0]
    scores = FrozenMaximum().score(series_of(norms))[:, 0]
    assert math.isnan(scores[101])  # the hundredth finite one
    assert math.isnan(scores[102])
    assert scores[103] == 3.0


def test_the_loss_has_a_frozen_maximum_of_its_own() -> None:
    scores = FrozenMaximum().score(series_of([1.0] * 101, [2.0] * 100 + [-30.0]))
    assert scores[100].tolist() == [1.0, 15.0]


def test_the_ema_begins_with_mean_and_variance_of_25_and_takes_spikes_in_as_they_are_clipped() -> (
    None
):
    first = [1.0, 3.0] * 12 + [2.0]
    mean, variance = statistics.fmean(first), statistics.pvariance(first)
    scores = EmaZ().score(series_of([*first, 3.0, 10.0, 3.0]))[:, -1]
    assert np.isnan(scores[: ema_z.WARM_UP]).all()
    for place, norm in ((25, 3.0), (26, 10.0), (27, 3.0)):
        sigma = math.sqrt(variance)
        z = (norm - mean) / (sigma + 1e-6)
        assert scores[place] == pytest.approx(z, rel=1e-12)
        taken = mean + 2.5 * sigma / (z / 2.5) if z > 2.5 else norm
        mean = 0.97 * mean + 0.03 * taken
        variance = 0.97 * variance + 0.03 * (taken - mean) ** 2
    assert scores[26] > 2.5


def test_one_nan_ends_the_ema_for_ever() -> None:
    norms = [1.0, 2.0] * 15 + [NAN] + [1.0] * 5 + [1e9]
    bad = [0] * 30 + [1] + [0] * 6
    scores = EmaZ().score(series_of(norms, nonfinite=bad))[:, -1]
    assert np.isnan(scores[30:]).all()


def skip_factor(losses: list[float], norms: list[float]) -> bool:
    """Whether the step is applied, in torch's own words: both within mean + 6 σ of those before."""
    loss_std, loss_mean = torch.std_mean(torch.tensor(losses[:-1], dtype=torch.float64))
    norm_std, norm_mean = torch.std_mean(torch.tensor(norms[:-1], dtype=torch.float64))
    return bool((losses[-1] - loss_mean <= 6 * loss_std) & (norms[-1] - norm_mean <= 6 * norm_std))


def test_mean_and_six_sigma_skip_the_same_steps_as_torch_does(rng: np.random.Generator) -> None:
    norms, losses = rng.lognormal(0, 0.1, 400), rng.normal(2, 0.05, 400)
    norms[[150, 250]] *= 3
    losses[300] += 1
    norms[350] = NAN
    bad = np.isnan(norms).astype(int)
    scores = SigmaSkip().score(series_of(norms, losses, nonfinite=bad))[:, -1]
    begun = sigma_skip.WINDOW // 2 - 1
    assert np.isnan(scores[:begun]).all()
    for step in range(begun, 400):
        first = max(0, step - sigma_skip.WINDOW)
        applied = skip_factor(losses[first : step + 1].tolist(), norms[first : step + 1].tolist())
        assert (scores[step] > 6) == (not applied), step
    assert (scores[350:] == INF).all()  # while the NaN is in the window


def test_sigma_is_that_of_a_sample() -> None:
    norms = [1.0, 2.0, 4.0] * 21  # 63: with the next one there are 64
    scores = SigmaSkip().score(series_of([*norms, 9.0]))[:, -1]
    assert scores[63] == pytest.approx((9 - statistics.fmean(norms)) / statistics.stdev(norms))


def test_six_sigma_of_a_window_without_spread() -> None:
    scores = SigmaSkip().score(series_of([1.0] * 70 + [1.5, 0.5]))[:, -1]
    assert scores[69] == 0.0
    assert scores[70] == INF
    assert scores[71] < 0.0 or scores[71] == 0.0


def test_a_jump_is_over_the_average_before_it() -> None:
    largest = [2.0] * max_jump.WARM_UP + [4000.0, 2.0]
    scores = MaxJump().score(series_of([1.0] * 27, max_abs=largest))[:, 0]
    assert np.isnan(scores[: max_jump.WARM_UP]).all()
    assert scores[25] == pytest.approx(2000.0)
    assert scores[26] == pytest.approx(2.0 / (0.97 * 2 + 0.03 * 4000))


def test_a_missing_gradient_leaves_the_average_and_a_nan_ends_it() -> None:
    largest = [2.0] * 25 + [NAN, 2.0, NAN, 1e9]
    bad = [0] * 27 + [1, 0]
    norms = [NAN if math.isnan(x) else 1.0 for x in largest]
    scores = MaxJump().score(series_of(norms, max_abs=largest, nonfinite=bad))[:, 0]
    assert scores[26] == pytest.approx(1.0)
    assert np.isnan(scores[27:]).all()


def test_the_robust_z_of_a_loss_is_the_formula_and_spikes_stay_out(
    rng: np.random.Generator,
) -> None:
    losses = rng.normal(2, 0.1, 200)
    losses[100] = 9.0
    losses[120] = NAN
    scores = LossRobustZ().score(series_of([1.0] * 200, losses))[:, -1]
    past = np.array([x for x in losses[:150] if x != 9.0 and x == x])[-128:]
    middle = np.median(past)
    z = (losses[150] - middle) / (1.4826 * np.median(np.abs(past - middle)))
    assert scores[150] == pytest.approx(z)
    assert np.isnan(scores[:32]).all()
    assert scores[100] > 6
    assert math.isnan(scores[120])


def test_the_robust_z_of_a_loss_that_never_moved() -> None:
    scores = LossRobustZ().score(series_of([1.0] * 42, [2.0] * 40 + [2.5, 2.0]))[:, -1]
    assert scores[39:].tolist() == [0.0, INF, 0.0]


def test_the_running_mean_by_hand() -> None:
    losses = [1.0, 4.0, 2.0, 3.0, 12.0, 11.0, NAN, 6.9, 7.0, INF, 1.0]
    scores = LossOverMean().score(series_of([1.0] * len(losses), losses))[:, -1]
    assert math.isnan(scores[0])
    assert scores[1] == 3.0  # (4 − 1)/1: a spike, which does not enter the mean
    assert scores[2] == 1.0  # (2 − 1)/1
    assert scores[3] == 1.0  # (3 − 1.5)/1.5
    assert scores[4] == 5.0  # (12 − 2)/2, worse than 3
    assert scores[5] == 4.5
    assert scores[6] == INF
    assert scores[7] == pytest.approx(2.45)
    assert scores[9:].tolist() == [INF, 0.0]  # better than the last is no spike


def test_the_running_mean_is_of_ten() -> None:
    losses = [5.0] * 5 + [float(x) for x in range(6, 16)] + [20.0]
    scores = LossOverMean().score(series_of([1.0] * 16, losses))[:, -1]
    assert scores[15] == pytest.approx((20 - 10.5) / 10.5)


def test_the_multiple_of_the_average_is_over_the_healthy_ones() -> None:
    norms = [2.0] * 40 + [200.0, 2.0, 0.0, NAN, 4.0]
    bad = [0] * 43 + [1, 0]
    scores = AverageMultiple().score(series_of(norms, nonfinite=bad))[:, 0]
    assert scores[40] == pytest.approx(100.0)
    assert scores[41] == pytest.approx(1.0)  # the alarm has not entered
    assert np.isnan(scores[42:44]).all()
    assert scores[44] == pytest.approx(2.0)


def test_nonfinite_counts_elements_and_looks_at_the_loss() -> None:
    scores = Nonfinite().score(series_of([1.0, 1.0], [2.0, NAN], nonfinite=[0, 7]))
    assert scores.tolist() == [[0.0, 0.0], [7.0, 1.0]]


def test_the_forest_scores_as_scikit_learn_does_and_takes_no_nan(rng: np.random.Generator) -> None:
    from sklearn.ensemble import IsolationForest

    norms = rng.lognormal(0, 0.1, (200, 4))
    forest = Forest(seed=5)
    forest.warm(series_of(norms))
    reference = IsolationForest(n_estimators=100, random_state=5).fit(np.log(norms))
    odd = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 50.0]])
    scores = forest.branch().score(series_of(odd))
    assert scores[:, -1] == pytest.approx(-reference.score_samples(np.log(odd)))
    assert scores[1, -1] > 0.5 > scores[0, -1]
    assert np.isnan(scores[:, :-1]).all()
    missing = forest.score(series_of([[NAN, 1.0, 0.0, 1.0]]))
    middle = [float(np.median(np.log(norms[:, layer]))) for layer in (0, 2)]
    filled = np.array([[middle[0], 0.0, middle[1], 0.0]])
    assert missing[0, -1] == pytest.approx(-reference.score_samples(filled)[0])


def test_the_sensor_is_the_guards_own_and_its_score_is_over_its_thresholds(
    rng: np.random.Generator,
) -> None:
    norms = rng.lognormal(0, 0.1, (150, 6))
    norms[140, 2] *= 1e6
    series = series_of(norms, max_abs=norms / 3, numel=1000)
    entry = SensorEntry(series.shapes)
    entry.warm(series.part(1, 101))
    found = entry.streams(series.part(101, 151))
    sensor = StepSensor([str(layer) for layer in range(6)], series.numel, shapes=series.shapes)
    alarms = []
    for row in range(150):
        signals = StepSignals(
            series.norms[row], series.max_abs[row], series.zeros[row], series.nonfinite[row]
        )
        scores = sensor.scores(signals, 2.0)
        if row >= 100:
            assert found[PARTS[0]][row - 100, :-1] == pytest.approx(np.abs(scores.norm))
            total = found["sensor: total"][row - 100, -1]
            assert total == pytest.approx(abs(scores.total), nan_ok=True)
        if sensor.judge(row + 1, signals, 2.0):
            alarms.append(row)
    over = np.flatnonzero((found[SENSOR] > 1).any(axis=1)) + 100
    assert over.tolist() == [row for row in alarms if row >= 100]
    assert 140 in over
    assert int(np.nanargmax(found[SENSOR][40])) == 2


def test_every_detector_goes_on_from_a_branch_as_it_would_itself(rng: np.random.Generator) -> None:
    norms = rng.lognormal(0, 0.1, (160, 5))
    series = series_of(norms, rng.normal(2, 0.1, 160), numel=1000)
    entries = line_up(series.shapes)
    for entry in entries:
        entry.warm(series.part(1, 141))
    branched = streams([entry.branch() for entry in entries], series.part(141, 161))
    again = streams([entry.branch() for entry in entries], series.part(141, 161))
    straight = streams(entries, series.part(141, 161))
    assert list(branched) == list(straight)
    for name, scores in straight.items():
        assert scores.shape == (20, 6)
        np.testing.assert_array_equal(branched[name], scores, err_msg=name)
        np.testing.assert_array_equal(again[name], scores, err_msg=name)
        assert np.isfinite(scores).any(), name
