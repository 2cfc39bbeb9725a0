"""Double centring against a plain median polish, and what it must not see."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard.detect.double_centred import (
    FEWEST_LAYERS,
    LASTING,
    RENEWAL,
    WARM_UP,
    WINDOW,
    DoubleCentred,
)
from sdc_guard.detect.medians import middles

FLOOR = 0.05


def course(seed: int, steps: int, ranks: int, layers: int) -> np.ndarray:
    """Logs, (steps, 1, ranks, layers): levels of layers, what a step shares, and noise."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 1, (steps, 1, ranks, 1)) + rng.normal(0, 1, (steps, 1, 1, 1))
    return np.linspace(-5, 3, layers) + shared + rng.normal(0, 0.1, (steps, 1, ranks, layers))


def fed(x: np.ndarray, **options: bool) -> tuple[DoubleCentred, np.ndarray, np.ndarray]:
    """A past of these steps, and residual and z of each."""
    past = DoubleCentred(x.shape[3], ranks=x.shape[2], floors=[FLOOR] * x.shape[1], **options)
    residuals, zs = [], []
    step = 0
    while step < len(x):
        scored = past.score(x[step : step + past.until_renewal])
        past.admit(scored.residual)
        residuals.append(scored.residual)
        zs.append(scored.z)
        step += len(scored.z)
    return past, np.concatenate(residuals), np.concatenate(zs)


@pytest.mark.parametrize("ranks", [1, 4])
def test_z_is_the_formula_over_the_window(ranks: int) -> None:
    x = course(1, 20 * RENEWAL + 1, ranks, 9)
    _, residual, z = fed(x)
    window, last = residual[-1 - WINDOW : -1], x[-1]
    level = np.median(window, axis=0)
    ordered = np.sort(window, axis=0)
    tenths = (ordered[WINDOW - 1 - 12] - ordered[12]) / 2.563
    spread = np.maximum(1.4826 * np.median(np.abs(window - level), axis=0), tenths)
    centred = last - (np.median(last, axis=1, keepdims=True) if ranks > 1 else 0)
    expected = centred - np.median(centred - level, axis=2, keepdims=True)
    np.testing.assert_allclose(residual[-1], expected, atol=1e-5)
    np.testing.assert_allclose(z[-1], (expected - level) / (spread + FLOOR), atol=1e-3)


def test_what_steps_ranks_and_the_layers_of_a_rank_share_does_not_show() -> None:
    x = course(2, 400, 4, 12)
    still = x.copy()
    x[300] += 5.0  # the step of all ranks
    x[320:] -= np.linspace(0, 8, 80)[:, None, None, None]  # a schedule
    np.testing.assert_allclose(fed(x)[2], fed(still)[2], atol=1e-3)
    x[390, :, 2] -= 3.0  # a bad batch of one rank
    assert np.abs(fed(x)[2][390]).max() < 6


def test_one_layer_of_one_rank_shows_and_no_other() -> None:
    x = course(3, 401, 4, 12)
    x[400, 0, 2, 7] += 3.0
    z = fed(x)[2][400, 0]
    assert z[2, 7] > 12
    z[2, 7] = 0.0
    assert np.abs(z).max() < 6


def test_each_of_few_layers_is_judged_by_itself() -> None:
    x = course(4, 200, 1, FEWEST_LAYERS - 1)
    _, residual, _ = fed(x)
    np.testing.assert_array_equal(residual, x)


def test_missing_values_are_passed_over_and_leave_the_others_alone() -> None:
    x = course(5, 400, 1, 9)
    whole = fed(x)[2]
    x[:, :, :, 8] = np.nan
    x[np.random.default_rng(5).uniform(size=400) < 0.3, :, :, 7] = np.nan
    past, _, z = fed(x)
    assert np.isnan(z[..., 8]).all()
    assert past.judgeable[0, 0, 7]
    assert not past.judgeable[0, 0, 8]
    assert np.nanmax(np.abs(z)) < 8
    assert np.abs(whole).max(where=np.isfinite(whole), initial=0) < 8


def test_constant_streams_do_not_divide_by_zero() -> None:
    with np.errstate(all="raise"):
        past, _, z = fed(np.zeros((100, 1, 1, 8)))
    assert not z[WARM_UP:].any()
    assert past.score(np.full((1, 1, 1, 8), 7.0)).z.max() == 0  # all layers alike
    one = np.zeros((1, 1, 1, 8))
    one[..., 3] = 1.0
    assert past.score(one).z[0, 0, 0, 3] == pytest.approx(1 / FLOOR)


def test_nothing_is_judged_before_there_is_a_past() -> None:
    _, _, z = fed(course(6, WARM_UP + 1, 1, 6))
    assert np.isnan(z[:WARM_UP]).all()
    assert np.isfinite(z[WARM_UP]).all()


def test_a_shift_that_stands_begins_anew_and_is_the_new_level() -> None:
    x = course(7, 3 * WINDOW, 1, 9)
    past, _, _ = fed(x)
    begun = []
    for step, row in enumerate(course(8, 2 * WINDOW, 1, 9)):
        row[..., 4] += 4.0
        scored = past.score(row[None])
        anew = past.admit(scored.residual, ~(np.abs(scored.z) > 12))
        begun += [] if anew is None else [(step, np.flatnonzero(anew).tolist())]
    assert begun == [(LASTING - 1, [4])]
    assert past.judgeable.all()
    assert np.abs(past.score(row[None]).z).max() < 6


def test_a_trend_of_one_layer_does_not_sum_up_against_the_line() -> None:
    """Against the median it lags by half of the window: 64 steps of 0.02, about 13 σ of MAD."""
    x = course(9, 600, 1, 9)
    x[:, 0, 0, 4] += 0.02 * np.arange(600)
    past = DoubleCentred(9, floors=[FLOOR], trends=True)
    lines, medians = [], []
    for row in x:
        scored = past.score(row[None])
        past.admit(scored.residual)
        assert scored.detrended is not None
        lines.append(scored.detrended[0, 0, 4])
        medians.append(scored.z[0, 0, 0, 4])
    assert np.isnan(lines[:WINDOW]).all()
    assert abs(np.mean(lines[300:])) < 0.15
    assert np.mean(medians[300:]) > 1.0


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.lists(st.floats(-100, 100) | st.just(float("nan")), min_size=5, max_size=5),
        min_size=1,
        max_size=8,
    )
)
def test_medians_with_gaps_are_those_of_what_is_there(values: list[list[float]]) -> None:
    rows = np.array(values)
    for row, found in zip(rows, middles(rows)[:, 0], strict=True):
        there = row[np.isfinite(row)]
        expected = np.median(there) if there.size else np.nan
        unit = np.finfo(np.float32).eps * np.abs(there).max(initial=1)  # it works in float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=unit)


def test_going_back_undoes_healthy_steps() -> None:
    x = course(10, 300, 1, 9)
    past, _, _ = fed(x[:250])
    before, score = past.remember(50), past.score(x[250:251]).z
    for row in x[250:]:
        past.admit(past.score(row[None]).residual)
    assert not np.array_equal(past.score(x[250:251]).z, score)
    past.go_back(before)
    np.testing.assert_array_equal(past.score(x[250:251]).z, score)
    np.testing.assert_array_equal(past._window, fed(x[:250])[0]._window)
