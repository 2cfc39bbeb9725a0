"""Ranks beside each other: streams made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from peer_windows import logs, values_of

from sdc_guard.detect.peer_alerts import peer_alert, reporter, steps_alert
from sdc_guard.detect.peer_findings import PeerFinding
from sdc_guard.detect.peers import PeerJudge

RANKS, LAYERS, AT = 8, 24, 150
BUDGET = 1e-4


def found(
    values: NDArray[np.float64], *, window: int = 20, budget: float | None = BUDGET
) -> list[PeerFinding]:
    """All findings, window after window."""
    steps, _, ranks, layers = values.shape
    judge = PeerJudge(ranks, layers, budget)
    return [
        one
        for at in range(0, steps, window)
        for one in judge.judge(range(at, min(at + window, steps)), values[at : at + window])
    ]


def test_sound_ranks_keep_to_the_budget() -> None:
    """0.3 findings are expected of 3,000 steps; more than 2 in one of 300 such tests."""
    assert sum(len(found(values_of(logs(n, 1000, RANKS, LAYERS), n))) for n in range(3)) <= 2


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_a_norm_of_one_layer_on_one_rank_is_named(ranks: int, factor: float) -> None:
    values = values_of(logs(4, 200, ranks, LAYERS))
    values[AT, 0, 2, 7] += math.log(factor)
    (one,) = found(values)
    assert (one.kind, one.step, one.rank, one.layer, one.steps) == ("norm", AT, 2, 7, 1)
    assert one.ranks == tuple(range(ranks))
    assert np.sign(one.score) == np.sign(math.log(factor))
    assert abs(one.score) > one.threshold


@pytest.mark.parametrize(("place", "kind", "by"), [(1, "peak", 4.0), (2, "zeros", 20.0)])
def test_peaks_and_zeros_are_judged_as_well(place: int, kind: str, by: float) -> None:
    values = values_of(logs(5, 200, RANKS, LAYERS))
    values[AT, place, 1, 3] += by
    (one,) = found(values)
    assert (one.kind, one.step, one.rank, one.layer) == (kind, AT, 1, 3)


def test_a_small_shift_that_lasts_is_a_shift() -> None:
    values = values_of(logs(6, 400, RANKS, LAYERS))
    values[AT:, 0, 5, 11] += 1.0
    kinds = [(one.kind, one.rank, one.layer) for one in found(values)]
    assert kinds[0] == ("shift", 5, 11)
    assert set(kinds) == {("shift", 5, 11)}


@pytest.mark.parametrize("scatter", [0.0, 1.5])
def test_a_rank_whose_layers_all_move_is_one_finding_and_no_layer(scatter: float) -> None:
    """A batch of garbage: each layer's gradient grows, not all by the same."""
    values = values_of(logs(7, 200, RANKS, LAYERS))
    by = np.random.default_rng(7).normal(math.log(1e4), scatter, LAYERS)
    values[AT, 0, 3, :] += by
    (one,) = found(values)
    assert (one.kind, one.step, one.rank, one.layer, one.steps) == ("rank", AT, 3, None, 1)


def test_many_layers_of_a_rank_at_once_are_that_rank() -> None:
    """Half of the layers: the median over layers does not see them."""
    values = values_of(logs(8, 200, RANKS, LAYERS))
    values[AT, 0, 3, : LAYERS // 2 - 2] += math.log(1e4)
    kinds = [(one.kind, one.rank, one.layer) for one in found(values)]
    assert kinds == [("rank", 3, None)]


def test_what_all_ranks_do_is_no_finding() -> None:
    """A spike of the whole model, a warm-up, and a layer that jumps everywhere at once."""
    values = values_of(logs(9, 400, RANKS, LAYERS))
    values[AT, 0, :, :] += math.log(30)
    values[200:, 0, :, :] -= math.log(100)
    values[300, 0, :, 5] += math.log(1000)
    assert found(values) == []


def test_of_two_ranks_none_is_named() -> None:
    values = values_of(logs(10, 200, 2, LAYERS))
    values[AT, 0, 1, 7] += math.log(1e5)
    (one,) = found(values)
    assert (one.kind, one.rank, one.ranks, one.layer, one.steps) == ("norm", None, (0, 1), 7, 1)
    assert reporter(one) == 0
    text = str(peer_alert(one, {7: "w"}))
    assert "which of them is at fault is not known" in text


def test_a_fault_that_stays_is_one_finding_a_window_and_in_the_end_the_new_level() -> None:
    values = values_of(logs(11, 800, RANKS, LAYERS))
    values[AT:, 0, 2, 7] += math.log(1000)
    faults = [one for one in found(values) if one.kind == "norm"]
    assert {(one.rank, one.layer) for one in faults} == {(2, 7)}
    windows = [one.step // 20 for one in faults]
    assert len(windows) == len(set(windows))
    assert faults[-1].step < AT + 150


def test_ranks_and_layers_that_are_missing_are_passed_over() -> None:
    values = values_of(logs(12, 300, RANKS, LAYERS))
    values[:, :, 0] = np.nan  # no guard there
    values[100:, :, 7] = np.nan  # died
    values[::3, :, 4, 9] = np.nan  # an expert that got no token
    values[:, :, 1:, 20] = np.nan  # a layer that one rank alone holds, and that is not there
    assert found(values) == []
    values[AT, 0, 2, 7] += math.log(100)
    (one,) = found(values)
    assert (one.rank, one.layer, one.ranks) == (2, 7, (1, 2, 3, 4, 5, 6))


def test_a_rank_of_which_other_layers_are_missing_at_each_step_is_judged_by_the_others() -> None:
    values = values_of(logs(15, 300, RANKS, LAYERS))
    gone = np.random.default_rng(15).random((300, LAYERS)) < 0.5
    values[:, :, 5][np.broadcast_to(gone[:, None], (300, 3, LAYERS))] = np.nan
    assert found(values) == []
    values[AT, 0, 5] += math.log(1e3)
    (one,) = found(values)
    assert (one.kind, one.rank, one.step) == ("rank", 5, AT)


def test_it_does_not_matter_how_steps_are_put_together() -> None:
    values = values_of(logs(13, 200, RANKS, LAYERS))
    values[AT, 0, 2, 7] += math.log(1000)
    assert found(values, window=1) == found(values, window=20) == found(values, window=200)


def test_without_a_budget_nothing_is_found() -> None:
    values = values_of(logs(14, 200, RANKS, LAYERS))
    values[AT, 0, 2, 7] += 50
    assert found(values, budget=None) == []


def test_alerts_name_rank_and_layer_and_convict_nobody() -> None:
    one = PeerFinding(7, "norm", 2, (0, 1, 2, 3), 5, -31.25, 20.0, 3)
    alert = peer_alert(one, {5: "block.weight"})
    assert (alert.step, alert.layer, alert.layer_name) == (7, 5, "block.weight")
    assert (alert.detector, alert.severity) == ("peer_norm", "suspect")
    assert (alert.score, alert.threshold) == (-31.25, 20.0)
    assert alert.detail["rank"] == 2
    assert "on rank 2 is -31.2 σ" in alert.detail["text"]
    assert "beside 3 other ranks, in 3 of the steps compared" in alert.detail["text"]


def test_ranks_at_other_steps_are_told_with_what_to_do() -> None:
    alert = steps_alert(500, {0: 500, 1: 0, 2: 500})
    assert alert.severity == "suspect"
    assert "ranks 0, 2 at 500; rank 1 at 0" in str(alert)
    assert "start all from one checkpoint" in str(alert)
    many = steps_alert(0, {rank: int(rank == 3) for rank in range(20)})
    assert "19 ranks (0 to 19) at 0" in str(many)
