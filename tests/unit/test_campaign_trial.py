"""Trials of the small convnet: the harness is exact, and faults have the evidence they should."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sdc_guard.archive.save import STATE_FILE
from sdc_guard.campaign.clean import read_window, run_clean, run_twin
from sdc_guard.campaign.file_fault import damage_file, file_effect
from sdc_guard.campaign.guarded import attach, learned
from sdc_guard.campaign.plan import Clean, Plan, Trial
from sdc_guard.campaign.training import build
from sdc_guard.campaign.trial import run_trial
from sdc_guard.campaign.workers import run_task
from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault

PLAN = Plan(models=("convnet",), twins=(300,), snapshots=(4,), after=6, clean_steps=8)
TRIAL = Trial(
    number=0, model="convnet", seed=300, snapshot=4, after=4, site="none", mix="none", kind="none",
    fault=None, draws=0, audited=False,
)  # fmt: skip
AT = 6  # step of a fault


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    torch.set_num_threads(1)
    run_twin(PLAN.twin_runs()[0], PLAN, folder)
    return folder


@pytest.fixture
def run(root: Path) -> Callable[..., dict[str, Any]]:
    def run(fault: Fault | None, **changes: Any) -> dict[str, Any]:
        site = "none" if fault is None else fault.site
        trial = replace(TRIAL, fault=fault, site=site, **changes)
        return run_trial(trial, read_window(root, "convnet", 300, 4), root)

    return run


def test_a_training_goes_on_from_its_state_to_the_bit() -> None:
    one = build("convnet", 3)
    for _ in range(55):
        one.step(None)
    state, there = copy.deepcopy(one.state()), one.hashes()
    losses = [one.step(None) for _ in range(3)]  # into the second epoch
    two = build("convnet", 4)
    assert two.hashes() != there
    two = build("convnet", 3)
    two.restore(state)
    assert two.hashes() == there
    assert [two.step(None) for _ in range(3)] == losses
    assert two.hashes() == one.hashes()
    two.restore(state)  # which going on from it has left alone
    assert two.hashes() == there


def test_every_bit_of_the_state_is_in_its_hashes() -> None:
    training = build("convnet", 3)
    training.step(None)
    before = training.hashes()
    tensors = [*training.model.state_dict().values()]
    for values in training.optimizer.state_dict()["state"].values():
        tensors += values.values()
    assert len(before) == len(tensors) + 2  # the position, the random generator
    for tensor in tensors:
        word = tensor.view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)
        word.view(-1)[0] ^= 1
        changed = training.hashes()
        assert sum(changed[name] != before[name] for name in before) == 1
        before = changed


@pytest.mark.parametrize("audited", [False, True])
def test_a_trial_without_a_fault_is_its_twin(run: Any, root: Path, audited: bool) -> None:
    rows = run(None, audited=audited)
    (row,) = rows["trials"]
    assert row["first_differs"] is row["replay_step"] is row["effect"] is None
    assert (row["norm_ratio"], row["loss_ratio"]) == (1.0, 1.0)
    assert (row["checkpoint_status"], row["manifest"], row["guard_errors"]) == ("clean", False, 0)
    assert not rows["trial_alerts"]
    assert [step["step"] for step in rows["trial_steps"]] == [5, 6, 7, 8]
    assert len(rows["trial_signals"]) == 4 * 8  # a layer per parameter


@pytest.mark.parametrize("site", ["gradient", "activation"])
def test_an_audited_step_shows_what_was_computed_wrong(run: Any, site: str) -> None:
    fault = Fault(site, 9, change="zero", pattern="lane", period=1)  # type: ignore[arg-type]
    rows = run(fault, audited=True, after=6)
    (row,) = rows["trials"]
    assert row["audit_verdict"] == "intermittent"
    found = [alert for alert in rows["trial_alerts"] if alert["detector"] == "step_audit"]
    assert [(alert["step"], alert["severity"]) for alert in found] == [(9, "proven")]
    assert row["replay_step"] == 9


def test_a_trial_leaves_nothing_behind(run: Any, root: Path) -> None:
    before = sorted(root.iterdir())
    run(Fault("weight", AT))
    assert sorted(root.iterdir()) == before


def test_a_changed_weight_is_proven_in_its_step(run: Any) -> None:
    fault = Fault("weight", AT, tensor="8.weight", index=17, bits=(12,))
    rows = run(fault)
    (row,) = rows["trials"]
    (alert,) = rows["trial_alerts"]
    detail = json.loads(alert["detail"])
    assert (alert["step"], alert["detector"], alert["severity"]) == (AT, "carried_digest", "proven")
    assert (detail["index"], detail["bits"]) == (17, [12])
    assert row["layers_hit"] == [alert["layer"]]
    assert (row["tensor"], row["words"], row["bits"], row["effect"]) == ("8.weight", 1, 1, "drift")
    assert row["first_differs"] == row["replay_step"] == AT
    assert "before" in row["replay_what"]
    assert row["checkpoint_status"] == "suspect"
    assert [step["differing"] > 0 for step in rows["trial_steps"]] == [False, True, True, True]


@pytest.mark.parametrize("site", ["activation", "output_gradient"])
def test_modules_are_hit_that_take_part(run: Any, root: Path, site: str) -> None:
    window = read_window(root, "convnet", 300, 4)
    assert set(window.modules) == {"", *map(str, range(9))}
    window = replace(window, modules=("3", "nothing"))
    fault = Fault(site, AT, change="zero", pattern="lane", period=1)  # type: ignore[arg-type]
    trial = replace(TRIAL, fault=fault, site=site, draws=4)
    (row,) = run_trial(trial, window, root)["trials"]
    assert (row["tensor"].partition(":")[0], row["changed"]) == ("3", True)
    assert row["first_differs"] == row["replay_step"] == AT
    assert len(row["layers_hit"]) == 1  # 3.weight; it has no bias


def test_a_trial_repeats_to_the_bit(run: Any) -> None:
    once = run(Fault("exp_avg", AT), draws=5)
    assert run(Fault("exp_avg", AT), draws=5) == once
    assert run(Fault("exp_avg", AT), draws=6) != once


def test_a_changed_file_is_found_by_its_manifest(run: Any) -> None:
    rows = run(Fault("file", 8, pattern="tile", width=512, change="zero"), draws=3)
    (row,) = rows["trials"]
    assert row["checkpoint_status"] == "clean"  # when it was sealed
    assert row["manifest"]
    assert row["effect"] in ("wrong", "unreadable")
    assert row["changed"]
    assert row["first_differs"] is None
    assert row["tensor"] == STATE_FILE


def test_a_guard_goes_on_with_what_another_has_learned(tmp_path: Path) -> None:
    training = build("convnet", 3)
    with attach(training, tmp_path / "one", first_step=1, digests=False) as guard:
        for _ in range(3):
            training.step(guard)
        sensor = learned(guard)
    before = pickle.dumps(sensor)
    training = build("convnet", 3)
    with attach(training, tmp_path / "two", first_step=1, digests=False) as guard:
        assert pickle.dumps(learned(guard)) != before
    with attach(training, tmp_path / "2", first_step=1, digests=False, sensor=sensor) as guard:
        assert pickle.dumps(learned(guard)) == before
        training.step(guard)
        assert pickle.dumps(learned(guard)) != before
    assert pickle.dumps(sensor) == before


def test_an_exception_is_an_outcome(root: Path) -> None:
    trial = replace(TRIAL, fault=Fault("weight", AT, tensor="nothing"), site="weight")
    outcome = run_task(trial, PLAN, root)
    assert outcome.rows is None
    assert outcome.reason.startswith("InjectionError: no")
    assert not outcome.outside


def test_a_clean_run_has_its_signals_and_no_digests(root: Path) -> None:
    rows = run_clean(Clean("judging", "convnet", 200, 5), root)
    assert rows["clean_runs"] == [
        {"purpose": "judging", "model": "convnet", "seed": 200, "steps": 5}
    ]
    assert [row["step"] for row in rows["clean_steps"]] == [1, 2, 3, 4, 5]
    assert all(row["norm"] > 0 for row in rows["clean_signals"])
    assert not rows["clean_alerts"]
    names = {row["layer"]: row["name"] for row in rows["layers"]}
    assert {row["layer"] for row in rows["clean_signals"]} <= names.keys()


def test_bytes_of_a_file_change_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(1, 201)) * 10)
    (word,) = damage_file(path, Fault("file", 1, index=3, bits=(0, 7)), 0)
    assert (word.index, word.before, word.after) == (3, 4, 4 ^ 0b10000001)
    assert path.read_bytes()[3] == word.after
    zeroed = damage_file(path, Fault("file", 1, index=1000, pattern="tile", width=512,
                                     change="zero"), 0)  # fmt: skip
    assert [word.index for word in zeroed] == list(range(512, 1024))
    content = path.read_bytes()
    assert not any(content[512:1024])
    assert content[511] != 0 != content[1024]
    assert len(content) == 2000
    with pytest.raises(InjectionError, match="no byte 2000"):
        damage_file(path, Fault("file", 1, index=2000, bits=(0,)), 0)
    with pytest.raises(InjectionError, match="no scale"):
        damage_file(path, Fault("file", 1, change="scale"), 0)


def test_what_a_resume_would_meet() -> None:
    state = {"a": torch.tensor([0.0, float("nan")]), "lr": 0.1, "list": [1, None]}
    assert file_effect(state, {**state, "a": state["a"].clone()}) == "masked"
    assert file_effect(state, {**state, "a": torch.tensor([-0.0, float("nan")])}) == "wrong"
    assert file_effect(state, {**state, "lr": 0.2}) == "wrong"
    assert file_effect(state, {**state, "list": [1]}) == "wrong"
    assert file_effect(state, None) == "unreadable"
