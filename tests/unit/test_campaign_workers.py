"""Processes that die or hang take one trial with them, and no more."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdc_guard.campaign.plan import Plan, Trial
from sdc_guard.campaign.progress import Progress
from sdc_guard.campaign.summary import summarise
from sdc_guard.campaign.workers import Pool
from sdc_guard.campaign.workspace import workspace
from sdc_guard.errors import UsageError

PLAN = Plan(models=("convnet",))
TRIAL = PLAN.trial(0)


class Deadly(Trial):
    """A trial that ends the process that takes it."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_process_that_dies_takes_one_trial_with_it(tmp_path: Path) -> None:
    tasks = [Deadly(**{**TRIAL.__dict__, "number": 0}), replace(TRIAL, number=1)]
    with Pool(PLAN, tmp_path, 1) as pool:
        outcomes = list(pool.run(tasks))
        processes = [worker.process for worker in (*pool._idle, *pool._busy)]
        assert len(processes) == 1
        number = processes[0].pid
    assert [outcome.task.number for outcome in outcomes] == [0, 1]  # type: ignore[union-attr]
    assert outcomes[0].reason == "the process ended with 9"
    assert outcomes[1].reason.startswith("FileNotFoundError")  # there is no twin here
    assert all(outcome.rows is None and not outcome.outside for outcome in outcomes)
    assert number is not None
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_trial_that_hangs_is_ended(tmp_path: Path) -> None:
    with Pool(PLAN, tmp_path, 1, limit=0.0) as pool:
        (outcome,) = pool.run([TRIAL])
    assert outcome.reason == "not finished after 0 s"
    assert outcome.rows is None


def test_what_a_killed_campaign_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdc_guard.campaign.workspace._parent", lambda: tmp_path)
    results, mine = tmp_path / "c.duckdb", tmp_path / "mine"
    mine.mkdir()
    (mine / "kept").touch()
    with workspace(tmp_path / "other.duckdb") as other:
        with workspace(results) as folder:
            assert other != folder
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not folder.exists()
        folder.mkdir()
        (folder / "left").touch()  # by one that was killed
        with workspace(results) as again:
            assert again == folder
            assert not list(again.iterdir())
        assert other.exists()
    folder.symlink_to(mine)
    with pytest.raises(UsageError, match="cannot be removed"), workspace(results):
        pass
    assert (mine / "kept").exists()


def test_progress_tells_how_long_it_takes_still() -> None:
    lines: list[str] = []
    now = iter([0.0, 20.0, 25.0, 40.0, 80.0])
    progress = Progress("trials", 4, lines.append, lambda: next(now))
    for failed in (False, True, False, False):
        progress.finished(failed=failed)
    assert lines == [
        "trials: 1 of 4, 20.00 s each, 60 s left",
        "trials: 3 of 4, 1 failed, 13.33 s each, 13 s left",
        "trials: 4 of 4, 1 failed, 20.00 s each, done",
    ]


def cell(site: str, failed: int, scored: int, found: int) -> tuple[Any, ...]:
    return ("gpt", site, "uniform", 9, failed, 0, scored, 0, 0, 0, 0, 0, 0, found)


@pytest.mark.parametrize(
    ("cells", "differing", "sound"),
    [
        ([cell("weight", 0, 9, 9), cell("gradient", 3, 6, 0)], 0, True),
        ([cell("weight", 0, 9, 9)], 1, False),
        ([cell("weight", 0, 9, 8)], 0, False),
        ([cell("file", 0, 7, 6)], 0, False),
        ([cell("step", 1, 8, 8)], 0, False),
    ],
)
def test_what_has_to_be_found_always(cells: list[Any], differing: int, sound: bool) -> None:
    answers = iter([[(5, differing)], [(1.5, 0.5, 2**20)], cells, [], []])
    summary = summarise(lambda _: next(answers))
    assert summary.sound is sound
    assert summary.as_object()["sound"] is sound
    assert f"5 trials without a fault, {differing} not as their twin" in list(summary.lines())
