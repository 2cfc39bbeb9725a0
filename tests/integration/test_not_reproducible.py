"""Real trainings whose resume or settings are not those of the run: the reason is named."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bisect_campaign import verified
from bisect_training import Again, Plan, train

from sdc_guard.archive.convictions import FILE
from sdc_guard.errors import NotReproducible
from sdc_guard.inject.fault import Fault

PLAN = Plan(seed=3)
WIDE = replace(PLAN, wide=True)
BUFFERS = replace(PLAN, guard={"digest_buffers": True})
Runs = Callable[[Plan], Path]
Refused = Callable[[Plan, Plan], NotReproducible]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each training once; tests add sessions, nothing else."""
    trained: dict[str, Path] = {}

    def one(plan: Plan) -> Path:
        if repr(plan) not in trained:
            folder = tmp_path_factory.mktemp("run")
            train(folder, plan)
            trained[repr(plan)] = folder
        return trained[repr(plan)]

    return one


@pytest.fixture(scope="module")
def refused(runs: Runs) -> Refused:
    """Why one plan's run is not reproduced by another plan; each asked once."""
    told: dict[str, NotReproducible] = {}

    def one(plan: Plan, again: Plan) -> NotReproducible:
        key = repr((plan, again))
        if key not in told:
            with pytest.raises(NotReproducible) as raised:
                verified(runs(plan), Again(again), 12)
            told[key] = raised.value
        return told[key]

    return one


@pytest.mark.parametrize(
    ("plan", "changed", "says"),
    [
        (PLAN, {"forget": ("generator",)}, "generators (dropout), or buffers"),
        (PLAN, {"forget": ("position",)}, "the data position is not restored"),
        (BUFFERS, {"forget": ("buffers",)}, "buffer norm.running_mean"),
        (WIDE, {"threads": 2}, "the settings differ: threads 1 → 2; at step"),
        (WIDE, {"threads": 2}, "as rounding does: sums in another order"),
        (PLAN, {"constant": True}, "the replay gives the same loss at each step"),
        (PLAN, {"jitter": True}, "the first steps are equal and what differs later grows"),
    ],
    ids=["generator", "position", "buffers", "threads", "the size", "constant output", "atomics"],
)
def test_the_reason_is_named_and_nothing_is_accused(
    runs: Runs,
    refused: Callable[[Plan, Plan], NotReproducible],
    plan: Plan,
    changed: dict[str, Any],
    says: str,
) -> None:
    error = refused(plan, replace(plan, **changed))
    assert error.exit_code == 4
    assert error.what.startswith("not reproducible, because ")
    assert says in error.what
    assert not (runs(plan) / "archive" / FILE).exists()


@pytest.mark.parametrize("start", [6, 18])
def test_an_inexact_resume_hides_no_fault_behind_one_checkpoint(runs: Runs, start: int) -> None:
    """Step 6 has no checkpoint before it, and one after it to calibrate by."""
    faulty = replace(PLAN, faults=(Fault("activation", start + 1, "middle", 3, 30),))
    found = verified(runs(faulty), Again(PLAN), start)
    assert (found.first_corrupt, found.exact, found.proven) == (start + 1, True, True)
    with pytest.raises(NotReproducible):
        verified(runs(faulty), Again(replace(PLAN, forget=("generator",))), start)


def test_what_the_run_itself_proves_needs_no_replay(runs: Runs) -> None:
    faulty = replace(PLAN, faults=(Fault("weight", 15, "middle.weight", 7, 12),))
    found = verified(runs(faulty), Again(replace(PLAN, threads=1, jitter=True)), 12)
    assert (found.first_corrupt, found.exact, found.kind) == (15, True, "state at rest")
    (tensor,) = found.tensors
    assert tensor.change is not None
    assert (tensor.name, tensor.change.index, tensor.change.bits) == ("middle.weight", 7, [12])


def with_one_checkpoint(run: Path, step: int, target: Path) -> Path:
    """A copy of a run whose archive has no other checkpoint, so nothing to calibrate by."""
    shutil.copytree(run, target)
    for folder in (target / "archive").glob("step=*"):
        if folder.name != f"step={step:06d}":
            shutil.rmtree(folder)
    return target


def test_with_one_checkpoint_other_settings_explain_what_differs_at_once(
    runs: Runs, tmp_path: Path
) -> None:
    run = with_one_checkpoint(runs(WIDE), 12, tmp_path / "run")
    with pytest.raises(NotReproducible) as raised:
        verified(run, Again(replace(WIDE, threads=2)), 12)
    assert "because the settings differ: threads 1 → 2" in raised.value.what
    assert "torch.set_num_threads" in raised.value.next_step


def test_with_one_checkpoint_settings_are_told_where_steps_repeat_in_spite_of_them(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is recorded, and read by nobody once torch is loaded."""
    fault = Fault("activation", 15, "middle", 3, 30)
    run = with_one_checkpoint(runs(replace(PLAN, faults=(fault,))), 12, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "7")
        found = verified(run, Again(PLAN), 12)
    assert (found.first_corrupt, found.proven, found.verdict) == (15, False, "undetermined")
    assert any("the settings differ: threads_env" in line for line in found.evidence)
    found = verified(run, Again(PLAN), 12)
    assert (found.first_corrupt, found.proven) == (15, False)
    assert not any("settings" in line for line in found.evidence)
