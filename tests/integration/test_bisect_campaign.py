"""The campaign of injected faults in short; its 100 trials are marked slow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bisect_campaign as campaign
from bisect_training import EVERY, STEPS, Again, Plan, train

from forensics.index import index
from sdc_guard import load_checkpoint
from sdc_guard.inject.fault import Fault


@pytest.mark.parametrize("site", ["exp_avg", "step", "gradient", "activation", "file"])
def test_a_fault_is_named(site: str, tmp_path: Path, seed: int) -> None:
    row = campaign.Row()
    campaign.trial(site, seed, tmp_path, row)
    assert row.missed == []
    assert (row.trials, row.step) == (1, row.scored)
    if site not in ("activation", "file"):
        assert (row.tensor, row.element) == (row.scored, row.scored)


def test_a_clean_run_is_not_accused(tmp_path: Path, seed: int) -> None:
    accused, _, _ = campaign.clean_run(seed, tmp_path)
    assert not accused


def test_checkpoints_after_a_proven_step_are_no_longer_the_ones_to_load(tmp_path: Path) -> None:
    """A gradient that was wrong raises no alert here: the guard called all of them clean."""
    plan = Plan(seed=1)
    fault = Fault("reduced_gradient", 14, "middle.weight", 5, 29)
    train(tmp_path, replace(plan, faults=(fault,)))
    assert {one.status for one in index(tmp_path)} == {"clean"}
    assert load_checkpoint(tmp_path)["step"] == STEPS
    found = campaign.verified(tmp_path, Again(plan), EVERY)
    assert (found.first_corrupt, found.exact, found.kind) == (14, True, "optimizer update")
    assert {(t.name, t.change and t.change.index) for t in found.tensors} == {("middle.weight", 5)}
    assert [one.status for one in index(tmp_path)] == ["clean"] * 2 + ["suspect"] * 2
    assert "a replay proved step 14 wrong: optimizer update" in index(tmp_path)[-1].reasons[0]
    assert load_checkpoint(tmp_path)["step"] == 12
    again = campaign.verified(tmp_path, Again(plan), EVERY)  # and it is noted once
    assert again.first_corrupt == 14
    assert len((tmp_path / "archive" / "convictions.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_hundred_faults(tmp_path: Path, seed: int) -> None:
    rows = campaign.each(campaign.SITES, 100, seed, campaign.trial)
    for site, row in rows.items():
        assert row.step == row.scored, row.missed
        assert row.accused_without_effect == 0
        if site in campaign.AT_REST or site == "gradient":
            assert (row.tensor, row.element) == (row.scored, row.scored), row.missed
    for number in range(20):
        accused, _, _ = campaign.clean_run(seed + number, tmp_path / str(number))
        assert not accused, number
