"""`sdc-guard inject PLAN -- COMMAND`: a script that knows nothing of faults is hit by them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest
import torch
from torch import nn

from sdc_guard import Guard
from sdc_guard.errors import InjectionError, UsageError
from sdc_guard.inject.command import report, run_with_faults
from sdc_guard.inject.from_environment import PLAN_VARIABLE, TOLD_VARIABLE
from sdc_guard.inject.journal import read_journal
from sdc_guard.store.reader import RunReader

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys, torch
from sdc_guard import Guard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
optimizer = torch.optim.AdamW(model.parameters())
guard = Guard(model, optimizer, run="run", digest_budget=None, policy="record")
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(5):
    loss = model(torch.ones(2, 4)).sum()
    if step == 1:
        loss = loss * float("inf")  # left out by the scaler: a step all the same
    scaler.scale(loss).backward()
    guard.observe(loss)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
guard.close()
sys.exit(int(sys.argv[1]))
"""

PLAN = """
seed = 3
[[fault]]
site = "weight"
step = 3
tensor = "*.weight"
bits = [30]
[[fault]]
site = "output_gradient"
step = 3
[[fault]]
site = "gradient"
step = 30
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_a_script_is_hit_and_what_fired_is_told(here: Path) -> None:
    command = [preloaded.python(), "-m", "sdc_guard.cli", "inject", "plan.toml", "--"]
    command += [preloaded.python(), "train.py", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr  # the script's own
    lines = [line for line in done.stderr.splitlines() if line.startswith("sdc-guard:")]
    first, second = read_journal(here / "run")
    assert (first.site, first.step, second.site) == ("weight", 3, "output_gradient")
    assert len(lines) == 3
    assert lines[0].startswith(f"sdc-guard: injected at step 3, rank 0: weight of {first.tensor} [")
    assert f"0x{first.touched[0].before:x} → 0x{first.touched[0].after:x}" in lines[0]
    assert "fault 2 (gradient) did not fire: the training ended before step 30 did" in lines[2]
    assert "Traceback" not in done.stderr
    with RunReader(here / "run") as reader:  # the step that a scaler left out counts, too
        alerts = reader.rows(
            "SELECT step, name FROM alerts JOIN layer_names USING (layer)"
            " WHERE detector = 'carried_digest'"
        )
    assert alerts == [(3, first.tensor)]


def test_a_command_without_a_guard_has_an_exit_code_of_its_own(here: Path) -> None:
    said: list[str] = []
    assert run_with_faults(here / "plan.toml", [sys.executable, "-c", ""], said.append) == 7
    assert said == [
        "nothing was injected: no Guard was made in the command (the one in the script takes the "
        "plan)"
    ]
    assert run_with_faults(here / "plan.toml", ["sh", "-c", "kill -9 $$"], said.append) == 137
    with pytest.raises(UsageError, match=r"cannot be started: No such file.*: no-such-program x"):
        run_with_faults(here / "plan.toml", ["no-such-program", "x"], said.append)


@pytest.fixture
def notes(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as one that the command started; the folder of its notes."""
    folder = here / "notes"
    folder.mkdir()
    monkeypatch.setenv(PLAN_VARIABLE, str(here / "plan.toml"))
    monkeypatch.setenv(TOLD_VARIABLE, str(folder))
    return folder


def guard_of(run: Path) -> tuple[nn.Module, Guard]:
    model = nn.Linear(4, 3)
    return model, Guard(model, torch.optim.AdamW(model.parameters()), run=run, policy="record")


def told(notes: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    found = [json.loads(path.read_text()) for path in sorted(notes.iterdir())]
    return report(found, said.append), said


def test_a_plan_for_another_model_is_refused_in_one_line(here: Path, notes: Path) -> None:
    (here / "plan.toml").write_text('[[fault]]\nsite = "weight"\nstep = 1\ntensor = "head.*"\n')
    with pytest.raises(InjectionError):
        guard_of(here / "run")
    fired, said = told(notes)
    assert fired == 0
    assert said[0].startswith("the plan was refused: no parameter named 'head.*' (one of weight, b")


def test_whatever_is_wrong_with_a_plan_is_told(
    here: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprised(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("sdc_guard.inject.injector.Injector.add", surprised)
    with pytest.raises(InjectionError, match="OverflowError: too large"):
        guard_of(here / "run")
    fired, said = told(notes)
    assert fired == 0
    assert said[0].startswith("the plan was refused: OverflowError: too large")


def test_a_plan_that_is_not_reached_says_so_and_a_second_guard_has_none(
    here: Path, notes: Path
) -> None:
    (here / "plan.toml").write_text('[[fault]]\nsite = "weight"\nstep = 30\n')
    _, guard = guard_of(here / "run")
    model, second = guard_of(here / "second")
    model(torch.ones(2, 4)).sum().backward()
    second.close()
    guard.close()
    fired, said = told(notes)
    assert (fired, said[-1]) == (0, "nothing was injected")
    assert "the training ended before step 30 did" in said[0]
    assert len(list(notes.iterdir())) == 1
    assert not (here / "second" / "inject").exists()


def test_a_replay_is_not_hit(here: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDC_GUARD_RUN", str(here / "replay"))
    _, guard = guard_of(here / "run")
    guard.close()
    assert list(notes.iterdir()) == []
