"""Judging logs of scalars: known courses, and what must hold for any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdc_guard.detect.peaks import Tail
from sdc_guard.detect.series import SeriesReport, judge
from sdc_guard.detect.series_baseline import LOSS_SCALE, NORM_SCALE, WINDOW, SeriesBaseline
from sdc_guard.detect.series_log import Column, SeriesLog
from sdc_guard.detect.series_tails import LOWEST, divided
from sdc_guard.detect.series_walk import beside, walk

Floats = NDArray[np.float64]
SEED = 20


def healthy(rows: int, seed: int = SEED) -> tuple[Floats, Floats]:
    """Losses about 3 and norms about 1, with noise of 0.05 and of 15 %."""
    rng = np.random.default_rng(seed)
    return 3 + 0.05 * rng.normal(size=rows), np.exp(0.15 * rng.normal(size=rows))


def judged(
    loss: Floats | None = None,
    norm: Floats | None = None,
    steps: Floats | None = None,
    **more: Floats,
) -> SeriesReport:
    columns = {"loss": loss, "grad_norm": norm, **more}
    given_columns = {name: Column.of(x) for name, x in columns.items() if x is not None}
    rows = len(next(iter(given_columns.values())).values)
    at = np.arange(rows) if steps is None else np.asarray(steps)
    return judge(SeriesLog(at.astype(np.int64), **given_columns))


def spans(report: SeriesReport) -> list[tuple[int, int, str]]:
    return [(one.first_step, one.last_step, one.kind) for one in report.incidents]


def test_a_score_is_that_of_the_formula() -> None:
    baseline = SeriesBaseline(NORM_SCALE)
    window = np.arange(1.0, WINDOW + 1)  # median 64.5, MAD 32, and 90 % are within 57.5 or 58
    baseline.admit(window)
    z, usual = baseline.score(200.0)
    assert usual == 64.5
    assert z == pytest.approx((200 - 64.5) / (1.4826 * 32 + 0.05))


def test_a_loss_is_judged_by_its_distance_from_its_trend() -> None:
    rows = np.arange(400.0)
    rng = np.random.default_rng(SEED)
    loss = 8 - 0.01 * rows + 0.02 * rng.normal(size=400)  # falls by 50 of its σ in 100 rows
    assert not judged(loss).incidents
    loss[300] += 1.0
    assert spans(judged(loss)) == [(300, 300, "loss_high")]


def test_several_at_once_are_judged_as_one_by_one() -> None:
    _, norm = healthy(700)
    for scale, values in ((NORM_SCALE, np.log(norm)), (LOSS_SCALE, norm)):
        baseline, twin = SeriesBaseline(scale), SeriesBaseline(scale)
        for one in (baseline, twin):
            one.admit(values[:200])
        z, usual = baseline.scores(values[200:260])
        for row in range(60):
            assert (z[row], usual[row]) == twin.score(values[200 + row])
            twin.admit(values[200 + row : 201 + row])
        baseline.admit(values[200:260])
        assert baseline.score(2.0) == twin.score(2.0)


def test_a_healthy_run_of_many_steps_keeps_the_budget() -> None:
    """B23: of 6,000 rows z > 3 over a moving window would tell a dozen."""
    loss, norm = healthy(6_000)
    assert len(judged(loss, norm).incidents) <= 1
    logs = np.log(norm)
    naive = sum(abs(logs[row] - logs[row - 128 : row].mean()) > 3 * logs[row - 128 : row].std()
                for row in range(128, len(logs)))  # fmt: skip
    assert naive > 10


def test_a_warm_up_is_no_incident() -> None:
    loss, norm = healthy(1000)
    at = np.arange(1000)
    assert not judged(loss + 8 * np.exp(-at / 100), norm * np.exp(4.6 * np.exp(-at / 60))).incidents


def test_zeros_of_a_gradient_are_no_small_norms() -> None:
    """B10: reinforcement learning, 272 of 2,000 norms are exactly 0, up to 6 in a row."""
    rng = np.random.default_rng(SEED)
    norm = np.exp(-2.5 + 0.7 * rng.normal(size=2000)).clip(0, 0.46)
    loss = np.round(1e-4 * rng.standard_t(3, size=2000), 4)
    zeros = 0
    while zeros < 272:
        begin, length = int(rng.integers(1990)), int(rng.integers(1, 7))
        norm[begin : begin + length] = loss[begin : begin + length] = 0.0
        zeros = int((norm == 0).sum())
    report = judged(loss, norm)
    assert not [one for one in report.incidents if one.kind.startswith("grad_norm")]
    assert (
        judged(norm=np.zeros(300), loss=healthy(300)[0]).notes[0].startswith("the grad norm is 0")
    )


def test_a_loss_that_is_mostly_zero_has_no_scale() -> None:
    rng = np.random.default_rng(SEED)
    loss = np.where(rng.random(400) < 0.7, 0.0, np.round(1e-4 * rng.normal(size=400), 4))
    loss[200], loss[150] = -0.0009, math.inf
    assert spans(judged(loss)) == [(150, 150, "loss_not_finite")]


def test_a_gradient_that_stays_zero_is_one_incident() -> None:
    loss, norm = healthy(500)
    norm[300:] = 0.0
    assert spans(judged(loss, norm)) == [(300, 499, "grad_norm_zero")]


@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_spike_that_heals_is_one_incident(noise: float) -> None:
    """B11: the quoted rows, with a calm course around them."""
    rng = np.random.default_rng(SEED)
    steps = np.concatenate([np.arange(30_900, 31_223), np.arange(31_250, 31_400)])
    norm = 0.2 * np.exp(noise * rng.normal(size=len(steps)))
    loss = 2.2 + 0.1 * noise * rng.normal(size=len(steps))
    at = int(np.flatnonzero(steps == 31_214)[0])
    norm[at : at + 9] = [0.242, 0.947, 2.39, 15.886, 145.119, 960.351, 353.201, 379.33, 650.246]
    loss[at : at + 9] = [2.199, 2.220, 2.595, 2.242, 2.345, 5.098, 3.492, 3.213, 2.805]
    (incident,) = judged(loss, norm, steps).incidents
    assert 31_214 < incident.first_step <= 31_216
    assert incident.last_step == 31_222
    assert (incident.kind, incident.peak) == ("grad_norm_high", 960.351)
    assert "loss_high" in incident.kinds
    assert not judged(loss, norm, steps).events  # the gap after it heals is no restart


def test_not_a_number_at_restarts_are_two_restarts_and_no_incident() -> None:
    """B14: the learning rate is 0 there, and the loss comes back much larger."""
    loss, norm = healthy(500)
    rate = np.full(500, 1e-4)
    norm[[201, 202, 204, 251]] = math.nan
    rate[[201, 202, 204, 251]] = 0.0
    loss = 0.003 * loss
    loss[201:215] = loss[251:265] = 3.0
    report = judged(loss, norm, lr=rate)
    assert [(one.kind, one.step) for one in report.events] == [("restart", 201), ("restart", 251)]
    assert not [one for one in report.incidents if one.kind.startswith("grad_norm")]
    assert any("not finite in 4 rows" in note for note in report.notes)


def test_one_that_is_not_a_number_is_one_alert_and_harms_nothing() -> None:
    """B15."""
    loss, norm = healthy(500)
    norm[200] = math.nan
    report = judged(loss, norm)
    assert spans(report) == [(200, 200, "grad_norm_not_finite")]
    norm[400] *= 60
    assert [one[0] for one in spans(judged(loss, norm))] == [200, 400]
    (incident,) = judged(loss, np.full(500, math.nan)).incidents
    assert (incident.first_step, incident.last_step, incident.rows) == (0, 499, 500)
    short = judged(loss[:8], np.full(8, math.nan))  # a scaler's search that never ends is none
    assert spans(short) == [(0, 7, "grad_norm_not_finite")]


def test_the_last_row_counts() -> None:
    """B20."""
    loss, norm = healthy(400)
    norm[-1] = math.nan
    (incident,) = judged(loss, norm).incidents
    assert (incident.first_step, incident.at_end) == (399, True)


def test_a_jump_after_a_resume_is_an_event() -> None:
    """B18: 0.3 higher, decaying within 200 steps; and B01: norms twice what they were."""
    loss, norm = healthy(1100)
    steps = np.concatenate([np.arange(600), np.arange(500, 1000)])
    loss[600:] += 0.3 * np.exp(-np.arange(500) / 70)
    norm[600:] *= 2
    report = judged(loss, norm, steps)
    assert not report.incidents
    (event,) = report.events
    assert (event.step, event.kind) == (500, "restart")
    assert "higher than before" in event.text
    factor = float(event.text.partition("grad_norm ")[2].partition(" times")[0])
    assert factor == pytest.approx(2, rel=0.15)
    norm[1000] *= 60  # the baseline after it is unharmed
    assert [one.first_step for one in judged(loss, norm, steps).incidents] == [900]


def test_another_level_after_missing_steps_is_a_restart() -> None:
    loss, norm = healthy(600)
    steps = np.concatenate([np.arange(300), np.arange(900, 1200)])
    loss[300:] += 1.0
    report = judged(loss, norm, steps)
    assert not report.incidents
    assert [one.step for one in report.events] == [900]
    assert "missing" in report.events[0].text


def test_a_burst_is_one_incident() -> None:
    """B24: logged every 5 steps, median 0.33, 16 rows up to 131, then calm."""
    rng = np.random.default_rng(SEED)
    norm = 0.33 * np.exp(0.25 * rng.normal(size=2400))
    norm[533:549] = 0.33 * np.geomspace(4, 131 / 0.33, 16)
    (incident,) = judged(norm=norm, steps=np.arange(2400) * 5).incidents
    assert 2665 <= incident.first_step <= 2685
    assert incident.last_step <= 2800
    assert incident.peak == pytest.approx(131)


def test_a_loss_scale_that_collapses_names_the_incident() -> None:
    """B25: it falls in each row, and the norms are infinite."""
    loss, norm = healthy(400)
    scale = np.full(400, 65536.0)
    scale[300:] = np.maximum(65536 * 0.25 ** np.arange(100), 1e-44)
    norm[300:] = math.inf
    (incident,) = judged(loss, norm, loss_scale=scale).incidents
    assert incident.kind == "loss_scale_collapse"
    assert incident.peak == 1e-44
    assert incident.last_step == 399


def test_a_scaler_that_searches_its_scale_is_no_incident() -> None:
    loss, norm = healthy(400)
    scale = np.full(400, 65536.0)
    norm[250] = math.inf
    scale[251:] /= 2
    assert not judged(loss, norm, loss_scale=scale).incidents
    assert judged(loss, norm).incidents


def test_what_leads_to_an_alarm_belongs_to_it() -> None:
    z = np.array([0.1, 6.0, 0.2, 5.5, -7.0, 20.0, 5.0, 4.9, 6.0, math.nan, 30.0])
    assert beside(z, (5, 10), 5.0).tolist() == [3, 4, 5, 6, 10]


def test_a_budget_goes_where_it_is_needed() -> None:
    light, heavy = Tail(1.0, 0.05, 0.2, 0.0), Tail(1.2, 0.05, 0.5, 0.35)
    assert divided(1e-4, [heavy] * 4) == pytest.approx([2.5e-5] * 4)
    parts = divided(1e-4, [light, heavy, light, heavy])
    rest = 0.05 * math.exp(-(LOWEST - 1.0) / 0.2)  # of the exponential tail, above the lowest limit
    assert parts[1] == parts[3] == pytest.approx((1e-4 - 2 * rest) / 2)
    for part, tail in zip(parts, [light, heavy] * 2, strict=True):
        limit = max(LOWEST, tail.exceeded_with(part))
        assert limit == LOWEST if tail is light else limit > 10


def test_what_lasts_is_one_incident_and_then_normal() -> None:
    loss, norm = healthy(1200)
    norm[400:] *= 50
    (incident,) = judged(loss, norm).incidents
    assert incident.first_step == 400
    assert incident.adopted is not None
    assert 490 <= incident.adopted <= 560
    norm[1000] *= 60
    assert [one.first_step for one in judged(loss, norm).incidents] == [400, 1000]


def test_norms_that_fall_are_seen_too() -> None:
    loss, norm = healthy(400)
    norm[300] /= 100
    assert spans(judged(loss, norm)) == [(300, 300, "grad_norm_low")]


def test_few_rows_are_not_compared() -> None:
    loss, norm = healthy(20)
    norm[15] = 1e6
    report = judged(loss, norm)
    assert not report.incidents
    assert sum("only 20 usable rows" in note for note in report.notes) == 2


def test_a_missing_value_is_neither_zero_nor_odd() -> None:
    loss, norm = healthy(600)
    given_rows = np.arange(600) % 3 == 0
    norm[~given_rows] = math.nan
    log = SeriesLog(np.arange(600), Column.of(loss), Column(norm, given_rows))
    assert not judge(log).incidents


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-30, 30))
def test_the_unit_of_a_norm_does_not_matter(seed: int, power: int) -> None:
    _, norm = healthy(300, seed)
    norm[250] *= 40
    z = walk(norm, NORM_SCALE, (1e-5, 1e-5)).z
    other = walk(norm * 2.0**power, NORM_SCALE, (1e-5, 1e-5)).z
    np.testing.assert_allclose(z, other, rtol=1e-9, atol=1e-9)


numbers = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1e-300, 1e300, math.nan, math.inf, 1.0])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-5, 400), numbers, numbers), min_size=1, max_size=60),
    times=st.integers(1, 6),
)
def test_any_numbers_give_incidents_in_their_order(
    rows: list[tuple[int, float, float]], times: int
) -> None:
    steps, loss, norm = (np.array(column) for column in zip(*rows * times, strict=True))
    report = judged(loss, norm, steps)
    alarming = {int(step) for step in steps}
    for incident in report.incidents:
        assert {incident.first_step, incident.last_step} <= alarming
        assert 1 <= incident.rows <= len(steps)
        assert incident.kind == incident.kinds[0]
    odd = ~np.isfinite(loss)
    told = sum(one.rows for one in report.incidents)
    assert told >= odd.sum()
