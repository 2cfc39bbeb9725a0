"""Alerts at the same distance from the start of each attempt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reported import report_on
from traces import make_run, step, write

from forensics.reporting.markdown import markdown
from sdc_guard.detect.recurrence import CHANCE, AttemptAlerts, Recurrence, recurrences
from sdc_guard.store.run_file import Attempt


def of(*attempts: tuple[int, int, list[int]]) -> list[Recurrence]:
    """(first step, last step, steps of alerts) of each."""
    found = [AttemptAlerts(n, *attempt) for n, attempt in enumerate(attempts, 1)]
    return recurrences({"nonfinite_loss": found})


def test_nan_16900_steps_after_each_start_is_told() -> None:
    starts = (0, 16_500, 33_000)
    (one,) = of(*((at, at + 16_900, [at + 16_900]) for at in starts))
    assert dict(one.distances) == {1: 16_900, 2: 16_900, 3: 16_900}
    assert (one.ran_so_far, one.same_step) == (3, False)
    assert "16,900 steps after the start of 3 attempts (1, 2, 3)" in str(one)
    assert "whatever the data" in str(one)


def test_distances_may_differ_by_one_in_a_thousand() -> None:
    (one,) = of((0, 17_000, [16_895]), (9_000, 26_000, [9_000 + 16_905]))
    assert "16,895 to 16,905 steps" in str(one)
    assert of((0, 17_000, [16_800]), (9_000, 26_000, [9_000 + 16_905])) == []


def test_other_alerts_do_not_hide_it_and_attempts_that_ended_before_do_not_count() -> None:
    (one,) = of(
        (0, 5_000, [17, 900, 4_000]),
        (3_000, 9_000, [3_333, 7_000]),
        (6_000, 6_300, []),
        (6_000, 12_000, [10_000]),
    )
    assert dict(one.distances) == {1: 4_000, 2: 4_000, 4: 4_000}
    assert one.ran_so_far == 3


def test_most_attempts_that_ran_so_far_have_to_have_it() -> None:
    rest = [(at, at + 9_000, []) for at in (0, 100)]
    assert of((0, 9_000, [4_000]), (3_000, 12_000, [7_000]), *rest) == []


def test_the_same_step_again_may_be_its_data() -> None:
    (one,) = of((0, 5_000, [4_000]), (0, 5_000, [4_000]))
    assert one.same_step
    assert str(one).endswith("the start or the data of that step")


@pytest.mark.parametrize("alerts", [1, 5, 40])
def test_alerts_that_fall_anywhere_are_hardly_ever_told(alerts: int) -> None:
    seed, trials, told = 3, 400, 0
    print("seed", seed)
    r = np.random.default_rng(seed)
    for _ in range(trials):
        starts = r.integers(0, 10_000, 3).tolist()
        told += bool(
            of(*((at, at + 9_999, (at + r.integers(0, 10_000, alerts)).tolist()) for at in starts))
        )
    assert told <= 3 * CHANCE * trials


def test_the_report_says_so(tmp_path: Path) -> None:
    starts = (0, 300, 600)
    run = make_run(tmp_path, *(Attempt(n, at, 0.0) for n, at in enumerate(starts, 1)))
    for number, at in enumerate(starts, 1):
        rows = [step(n, attempt=number) for n in range(at, at + 401)]
        alert = {"attempt": number, "step": at + 400, "detector": "nonfinite_loss", "detail": "{}"}
        write(run, [*rows, ("alerts", {**alert, "severity": "suspect"})])
    text = markdown(report_on(run))
    assert "nonfinite_loss came 400 steps after the start of 3 attempts (1, 2, 3)" in text


def test_a_run_with_one_attempt_has_nothing_to_compare(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, [step(0), ("alerts", {"step": 0, "detector": "x", "detail": "{}"})])
    assert "after the start of" not in markdown(report_on(run))
