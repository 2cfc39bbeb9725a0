"""`sdc-guard verify-archive`: all checkpoints of a run against what was recorded of them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch
from click.testing import CliRunner
from conftest import Answer

from forensics.index import index
from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.confirmations import read_confirmations
from sdc_guard.archive.convictions import Conviction, add_conviction, read_convictions
from sdc_guard.archive.gate_command import loss_in
from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.cli import main


def guard_says(*arguments: object) -> Answer:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


def trained(folder: Path, *, change_at: int | None = None) -> Path:
    """A run with its own checkpoints of steps 1, 3, and files of steps 2 and 4 beside it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch = torch.ones(3, 4)
    options: dict[str, Any] = {"first_step": 1, "policy": "record", "digest_budget": None}
    shadow = (batch, lambda model, batch: model(batch).square().mean())
    with Guard(
        model, optimizer, run=folder / "run", shadow=shadow, shadow_every=1, **options
    ) as guard:
        for step in (1, 2, 3, 4):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 2:
                guard.checkpoint({"model": model}, step)
            else:
                file = folder / f"step-{step}.pt"
                torch.save({"model": model.state_dict()}, file)
                guard.seal(file, step)
            if step == change_at:
                with torch.no_grad():
                    model[0].weight[0, 0] += 1
    return folder / "run"


def statuses(run: Path, *more: object) -> tuple[int, dict[int, str]]:
    answer = guard_says("verify-archive", run, "--json", *more)
    rows = json.loads(answer.out)["checkpoints"]
    return answer.code, {row["step"]: row["status"] for row in rows}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged: a run and what lies beside it may be moved together."""
    shutil.copytree(sound.parent, tmp_path / "copy")
    return tmp_path / "copy" / "run"


def test_a_sound_run_is_clean(run: Path) -> None:
    answer = guard_says("verify-archive", run)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "         1  clean       archive/step=000001",
        "         2  clean       ../step-2.pt",
        "         3  clean       archive/step=000003",
        "         4  clean       ../step-4.pt",
    ]
    assert statuses(run, "--last", 2, "--jobs", 1) == (0, {3: "clean", 4: "clean"})


def test_each_damage_has_its_word(run: Path) -> None:
    for file, at in ((run / "archive" / "step=000001" / "state.pt", 700),
                     (run.parent / "step-2.pt", 700)):  # fmt: skip
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)
    assert statuses(run) == (1, {1: "corrupt", 2: "corrupt", 3: "clean", 4: "clean"})
    assert statuses(run, "--last", 2)[0] == 0
    (run / "archive" / "step=000003" / "manifest.json").write_text("{")
    seal_of(run.parent / "step-4.pt").unlink()
    assert statuses(run, "--last", 2) == (5, {3: "incomplete", 4: "incomplete"})
    (run.parent / "step-4.pt").unlink()
    assert statuses(run)[1][4] == "gone"  # a retention may have deleted it


def test_what_was_proven_later_counts(run: Path) -> None:
    add_conviction(run / "archive", Conviction(1, 2, 3, "other weights", session="s1"))
    code, found = statuses(run)
    assert (code, found) == (1, {1: "clean", 2: "clean", 3: "suspect", 4: "suspect"})
    assert "a replay proved step 3 wrong" in guard_says("verify-archive", run).out


def test_a_conviction_of_a_sealed_file_is_seen_by_every_command(run: Path) -> None:
    words = ("--", sys.executable, "-S", "-c", "import sys; sys.exit('4.pt' in sys.argv[1])")
    assert statuses(run, *words, "{ckpt}") == (
        1,
        {1: "clean", 2: "clean", 3: "clean", 4: "suspect"},
    )
    assert statuses(run)[1][4] == "suspect"
    found = {one.step: one.status for one in index(run)}
    assert found == {1: "clean", 2: "clean", 3: "clean", 4: "suspect"}


def test_checkpoints_in_an_incident_are_suspect(tmp_path: Path) -> None:
    run = trained(tmp_path, change_at=2)  # found at step 3
    assert statuses(run) == (1, {1: "clean", 2: "clean", 3: "suspect", 4: "suspect"})


@pytest.mark.parametrize(
    ("body", "code", "found"),
    [
        ("sys.exit(1 if step == 3 else 0)", 1, {1: "clean", 3: "suspect"}),
        ("sys.exit(125)", 0, {1: "clean", 3: "clean"}),
        ("sys.exit(7)", 5, {1: "incomplete", 3: "incomplete"}),
        ("raise ValueError", 5, {1: "incomplete", 3: "incomplete"}),
        ("print('nan' if step == 1 else 0.5)", 1, {1: "suspect", 3: "clean"}),
    ],
)
def test_a_command_is_asked_and_its_answer_kept(
    run: Path, tmp_path: Path, body: str, code: int, found: dict[int, str]
) -> None:
    script = tmp_path / "eval.py"
    script.write_text(f"import os, sys\nstep = int(sys.argv[2])\n{body}\n")
    for step in (2, 4):
        (run.parent / f"step-{step}.pt").unlink()
    words = ("--", sys.executable, "-S", script, "{ckpt}", "{step}")
    answered, all_found = statuses(run, *words)
    assert (answered, {step: all_found[step] for step in (1, 3)}) == (code, found)
    archive = run / "archive"
    against = {one.checkpoint for one in read_convictions(archive)}
    assert against == {f"step={step:06d}" for step, one in found.items() if one == "suspect"}
    doubted = "suspect" in found.values()
    assert statuses(run)[0] == (1 if doubted else 0)  # also when nobody is asked
    if doubted:
        kept = next(step for step, one in found.items() if one == "clean")
        if kept == 1:
            assert load_checkpoint(run)["step"] == 1
        assert [one.step for one in read_confirmations(archive)] == [kept]


def test_a_loss_is_compared_with_that_of_the_training(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "eval.py"
    script.write_text(
        "import json, sys, torch\n"
        "from sdc_guard import load_checkpoint\n"
        "torch.set_num_threads(1)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))\n"
        "model.load_state_dict(load_checkpoint(sys.argv[1])['model'])\n"
        "loss = model(torch.ones(3, 4)).square().mean().double().item()\n"
        "print(json.dumps({'loss': loss}))\n"
    )
    words = ("--last", 2, "--", preloaded.python(), script, "{ckpt}")
    (run.parent / "step-4.pt").unlink()
    answer = guard_says("verify-archive", run, *words)
    assert answer.code == 0, answer.out + answer.err
    assert "the shadow loss of the training" in answer.out.splitlines()[0]
    assert "another batch" not in answer.out


@pytest.mark.parametrize(
    ("output", "loss"),
    [("0.25\n", 0.25), ("a\n1e-3", 1e-3), ('{"loss": 2}', 2.0), ("done", None), ("", None),
     ('{"loss": true}', None), ("[1]", None), ("inf", float("inf"))],
)  # fmt: skip
def test_losses_that_commands_print(output: str, loss: float | None) -> None:
    assert loss_in(output) == loss


def test_wrong_words_and_empty_runs(run: Path, tmp_path: Path) -> None:
    answer = guard_says("verify-archive", run, "--", "true")
    assert answer.code == 2
    assert "names neither {ckpt} nor {step}" in answer.err
    assert guard_says("verify-archive", tmp_path / "nothing").code == 2
    shutil.rmtree(run / "archive")
    answer = guard_says("verify-archive", run)
    assert (answer.code, answer.out) == (5, "")
