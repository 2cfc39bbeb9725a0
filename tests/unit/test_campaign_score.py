"""Scoring, on a file in which the answers are known by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scored_campaign import FAULT, entries, write_campaign

from sdc_guard.campaign.catches import Catch, caught, earliest, evidence_of
from sdc_guard.campaign.curves import curve, windows
from sdc_guard.campaign.rates import Rate, paired
from sdc_guard.campaign.reading import CampaignFile, Said
from sdc_guard.campaign.score import Scored, score
from sdc_guard.campaign.scoreboard import scoreboard
from sdc_guard.campaign.thresholds import FalseAlarms
from sdc_guard.errors import RunFormatError, RunNotFound

BASELINE = "frozen maximum"
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    return score(write_campaign(tmp_path_factory.mktemp("scored") / "c.duckdb"), entries=entries)


@pytest.fixture(scope="module")
def numbers(scored: Scored) -> dict[str, Any]:
    return scoreboard(scored)


def finding(scored: Scored, name: str) -> dict[int, Catch]:
    found = {one.trial.trial: one.found_by(name) for one in scored.outcomes}
    return {trial: catch for trial, catch in found.items() if catch is not None}


def test_which_trials_count(scored: Scored) -> None:
    assert [one.trial.trial for one in scored.outcomes] == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    counted = [one.trial.trial for one in scored.outcomes if one.counted]
    assert counted == [0, 1, 2, 3, 4, 6, 10, 11]
    assert (scored.unfired, scored.failed) == (1, (("IndexError: 300", 1),))
    assert [one.trial.trial for one in scored.controls] == [-1]


def test_thresholds_are_of_the_calibration_runs_and_judged_on_the_others(scored: Scored) -> None:
    limits = scored.calibrated["toy"][BASELINE]
    assert (limits.budget.value, limits.budget.method) == (1.2, "largest")
    assert limits.at_budget == FalseAlarms(1, 40)  # the first 110 steps are only taken in
    assert limits.published is not None
    assert limits.published.value == 10.0
    assert limits.as_published == FalseAlarms(0, 40)
    nonfinite = scored.calibrated["toy"]["non-finite"]
    assert (nonfinite.budget.value, nonfinite.budget.method) == (0.0, "published")


def test_what_each_detector_finds_and_whom_it_names(scored: Scored) -> None:
    # what is not finite stands beside each of them; the alarm before the fault is not its own
    assert finding(scored, BASELINE) == {1: Catch(FAULT, 2), 4: Catch(FAULT + 1, 0)}
    assert finding(scored, "sensor") == {2: Catch(FAULT + 2, 0), 4: Catch(FAULT + 1, 0)}
    assert finding(scored, "digests") == {0: Catch(FAULT, 1)}
    assert finding(scored, "checks") == {}  # the twin says the same
    assert finding(scored, "audit") == {10: Catch(FAULT, None)}
    assert finding(scored, "manifest") == {6: Catch(120, None)}
    assert set(finding(scored, "all live")) == {0, 2, 4, 6}
    assert set(finding(scored, "with replay")) == {0, 1, 2, 4, 6, 10}
    alone = [one.trial.trial for one in scored.outcomes if one.found_by(BASELINE, alone=True)]
    assert alone == [1]


def test_recall_and_latency_in_the_numbers(numbers: dict[str, Any]) -> None:
    (gradient,) = [row for row in numbers["sites"] if row["site"] == "gradient"]
    assert (gradient["model"], gradient["mix"]) == ("toy", "uniform")
    assert (gradient["injected"], gradient["counted"]) == (5, 4)
    replayed = gradient["recall"]["with replay"]["recall"]
    assert (replayed["hits"], replayed["of"], replayed["share"]) == (3, 4, 0.75)
    # (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964
    assert (replayed["low"], replayed["high"]) == pytest.approx((0.30064, 0.95441), abs=1e-5)
    sensor = gradient["recall"]["sensor"]
    assert (sensor["latency_median"], sensor["latency_p90"]) == (1.5, 1.9)
    assert (sensor["named"]["hits"], sensor["named"]["of"]) == (1, 2)
    assert sensor["same_step"]["hits"] == 0
    (activation,) = [row for row in numbers["sites"] if row["site"] == "activation"]
    assert activation["recall"]["audit"]["recall"]["of"] == 1
    assert activation["recall"]["audit"]["recall"]["hits"] == 1


def test_detectors_are_judged_without_the_files(numbers: dict[str, Any]) -> None:
    by_name = {one["name"]: one for one in numbers["detectors"]}
    assert list(by_name) == ["sensor", BASELINE]
    baseline = by_name[BASELINE]
    assert baseline["budget"]["recall"]["of"] == 7
    assert baseline["budget"]["recall"]["hits"] == 2
    assert baseline["budget"]["false"]["rate"] == 1 / 40
    assert baseline["published"]["recall"]["hits"] == 2
    assert baseline["against_sensor"] == {"only_sensor": 1, "only_this": 1, "p": 1.0}
    assert numbers["best_baseline"] == BASELINE
    curve_of_sensor = by_name["sensor"]["curves"]["toy"]
    # of seven trials one has a larger element, and one a value that is not finite
    assert (curve_of_sensor["windows"], curve_of_sensor["window_steps"]) == (4, 10)
    points = zip(curve_of_sensor["false_windows"], curve_of_sensor["recall"], strict=True)
    assert max(recall for false, recall in points if false == 0) == pytest.approx(2 / 7)
    effects = {row["effect"]: row["counted"] for row in numbers["effects"]}
    assert effects == {"drift": 6, "nonfinite": 1, "masked": 0, "wrong": 1}


def test_faults_controls_and_the_guards_own_false_alarms(numbers: dict[str, Any]) -> None:
    assert numbers["faults"] == {
        "injected": 10, "unchanged": 1, "masked": 1, "counted": 8, "unfired": 1, "failed": 1,
        "guard_errors": 0,
    }  # fmt: skip
    assert numbers["controls"]["count"] == 1
    assert numbers["controls"]["differing"] == 0
    # steps 20 and 30 are one incident, 90 is another
    assert numbers["told"]["toy"]["statistics"]["incidents"] == 2
    assert numbers["told"]["toy"]["checks"]["incidents"] == 0


def test_the_numbers_are_json(numbers: dict[str, Any]) -> None:
    text = json.dumps(numbers, allow_nan=False)
    assert json.loads(text)["schema"] == {"name": "sdc-guard.scoreboard", "version": 1}


def test_an_alarm_counts_from_the_fault_on_and_if_the_twin_does_not_raise_it() -> None:
    scores = np.array([[9.0, 0.0, NAN], [0.0, 3.0, NAN], [INF, 9.0, NAN], [0.0, 0.0, 9.0]])
    quiet = np.zeros((4, 3))
    assert caught(scores, quiet, 2.0, first_step=10, fault_step=10) == Catch(10, 0)
    assert caught(scores, quiet, 2.0, first_step=10, fault_step=11) == Catch(11, 1)
    assert caught(scores, quiet, 3.0, first_step=10, fault_step=11) == Catch(12, 0)
    usual = np.array([[0.0] * 3, [0.0, 5.0, 0.0], [0.0, 5.0, 0.0], [0.0] * 3])
    assert caught(scores, usual, 2.0, first_step=10, fault_step=11) == Catch(12, 0)
    assert caught(scores, quiet, 2.0, first_step=10, fault_step=13) == Catch(13, None)
    assert caught(scores, quiet, INF, first_step=10, fault_step=10) is None


def test_the_earliest_of_several_names_a_layer_if_one_does() -> None:
    assert earliest([None, Catch(5, None), Catch(5, 2), Catch(6, 1)]) == Catch(5, 2)
    assert earliest([None]) is None


@pytest.mark.parametrize(
    ("detector", "severity", "kind"),
    [
        ("carried_digest", "proven", "digests"),
        ("step_audit", "proven", "audit"),
        ("step_audit", "suspect", "checks"),
        ("gradient_peak", "suspect", "statistics"),
        ("global_norm", "suspect", "statistics"),
        ("norm_ratio", "suspect", "statistics"),
        ("nonfinite_loss", "suspect", "statistics"),
        ("loss", "suspect", "statistics"),
        ("loss_scale", "suspect", "checks"),
        ("update_limit", "suspect", "checks"),
    ],
)
def test_the_kind_of_evidence(detector: str, severity: str, kind: str) -> None:
    assert evidence_of(Said(1, None, detector, severity)) == kind


def test_mcnemar_is_exact(scored: Scored) -> None:
    def of(trials: set[int]) -> Callable[[Any], Catch | None]:
        return lambda one: Catch(1, None) if one.trial.trial in trials else None

    pair = paired(scored.outcomes, of({0, 1, 2, 3, 4, 6}), of({6}))
    assert (pair.only_first, pair.only_second) == (5, 0)
    assert pair.p == pytest.approx(2 * 0.5**5)
    assert paired(scored.outcomes, of({0}), of({0})).p == 1.0


def test_the_curve_by_hand() -> None:
    healthy = np.array([0.0, 1.0, 2.0, 3.0] * 25)  # a quarter of them at 3
    healthy[0] = 4.0
    faulty = np.array([INF, 5.0, 4.0, -INF])
    drawn = curve(healthy, faulty, length=10)
    assert drawn is not None
    points = set(zip(drawn.false_windows, drawn.recall, strict=True))
    assert {(0.0, 0.0), (0.0, 0.5), (0.01, 0.75)} <= points
    assert max(drawn.false_windows) == 0.01  # the next is a quarter of the windows
    # under the curve to 5 %: linear from 0.5 to 0.75 in the first hundredth, then 0.75
    area = 0.01 * (0.5 + 0.75) / 2 + 0.04 * 0.75
    chance = 0.05**2 / 2
    assert drawn.area == pytest.approx((1 + (area - chance) / (0.05 - chance)) / 2)
    assert curve(healthy, np.empty(0), 10) is None


def test_windows_are_whole() -> None:
    found = windows([np.arange(7.0), np.arange(3.0), np.arange(2.0)], 3)
    assert found.tolist() == [2.0, 5.0, 2.0]


def test_a_rate_without_a_trial() -> None:
    assert Rate(0, 0).as_object() == {"hits": 0, "of": 0, "share": None, "low": 0.0, "high": 1.0}


def test_what_is_no_campaign_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no campaign there"):
        CampaignFile(tmp_path / "none.duckdb")
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(RunFormatError, match="not a campaign's file"):
        CampaignFile(tmp_path / "text")
    duckdb.connect(str(tmp_path / "other.duckdb")).close()
    with pytest.raises(RunFormatError, match="not a campaign's file"):
        CampaignFile(tmp_path / "other.duckdb")
    newer = write_campaign(tmp_path / "newer.duckdb", version=99)
    with pytest.raises(RunFormatError, match="format 99"):
        CampaignFile(newer)


def test_layers_without_a_row_had_no_gradient(tmp_path: Path) -> None:
    path = write_campaign(tmp_path / "c.duckdb")
    connection = duckdb.connect(str(path))
    connection.execute("DELETE FROM clean_signals WHERE step = 7 AND layer = 1")
    connection.execute("UPDATE clean_steps SET loss = NULL WHERE step = 8")
    connection.close()
    with CampaignFile(path) as file:
        series = file.clean_run("twin", "toy", 3).series
    assert len(series) == 120
    assert bool(series.missing[6, 1])
    assert int(series.missing.sum()) == 1
    assert np.isnan(series.loss).nonzero()[0].tolist() == [7]
