"""Whatever is wrong with the input: one line, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import preloaded
import pytest
import torch
from conftest import Answer, bisect, guard_command, run, small_sample


def one_line(answer: Answer, code: int, *says: str) -> None:
    assert answer.code == code, answer.out + answer.err
    lines = [line for line in answer.err.splitlines() if not line.startswith("  ")]
    assert len(lines) == 1, answer.err
    assert "Traceback" not in answer.err
    for text in says:
        assert text in lines[0]


@pytest.fixture
def run_copy(clean_run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(clean_run, folder)
    return folder


@pytest.mark.parametrize("command", ["run", "verify", "report"])
def test_a_missing_run_folder(command: str, tmp_path: Path) -> None:
    one_line(bisect(command, tmp_path / "nowhere"), 2, "no run folder there", "nowhere")


@pytest.mark.parametrize("command", ["run", "verify", "report"])
def test_an_empty_run_folder(command: str, tmp_path: Path) -> None:
    one_line(bisect(command, tmp_path), 2, "this folder is empty")


@pytest.mark.parametrize("command", ["verify", "report"])
def test_a_run_that_never_saw_the_guard(command: str, tmp_path: Path) -> None:
    torch.save({"step": 7, "w": torch.ones(3)}, tmp_path / "step-7.pt")
    one_line(bisect(command, tmp_path), 2, "no guard recorded here", "attach Guard")


def test_index_of_what_is_not_there(tmp_path: Path) -> None:
    one_line(bisect("index", tmp_path / "nowhere"), 2, "no such folder")
    one_line(bisect("index", tmp_path), 5, "no checkpoint there")


def test_index_and_a_users_command_work_without_a_guard(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        torch.save({"step": step, "w": torch.full((3,), float(step))}, tmp_path / f"s-{step}.pt")
    answer = bisect("index", tmp_path, "--json")
    assert [row["step"] for row in answer.json["checkpoints"]] == [9, 10, 11]
    assert {row["status"] for row in answer.json["checkpoints"]} == {"untested"}
    check = "import sys, torch; sys.exit(int(torch.load(sys.argv[1])['w'][0]) >= 10)"
    found = bisect("run", tmp_path, "--json", "--", preloaded.python(), "-c", check, "{ckpt}")
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (9, 10)


def test_errors_as_json(tmp_path: Path) -> None:
    answer = bisect("run", tmp_path / "nowhere", "--json")
    assert answer.code == 2
    assert answer.json["schema"]["name"] == "sdc-bisect.run"
    assert set(answer.json["error"]) == {"what", "where", "next"}


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_checkpoint_cut_off_is_corrupt_by_its_manifest(run_copy: Path, keep: float) -> None:
    path = run_copy / "archive" / "step=000030" / "state.pt"
    size = path.stat().st_size
    length = int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep
    path.write_bytes(path.read_bytes()[:length])
    answer = bisect("index", run_copy, "--json")
    assert answer.code == 5
    row = next(row for row in answer.json["checkpoints"] if row["step"] == 30)
    assert row["status"] == "untested"
    assert f"({length:,} of {size:,} bytes)" in row["reasons"][0]
    found = bisect("run", run_copy, "--json")
    assert found.code == 1
    assert (found.json["first_corrupt"], found.json["proven"]) == (30, True)
    resume = run([small_sample(), "--run", run_copy, "--resume", path.parent, "--until", 31])
    one_line(resume, 5, "bytes)")
    one_line(bisect("verify", run_copy, "--recorded", "--from", 30), 2, "no checkpoint of step 30")


def test_every_checkpoint_cut_off(run_copy: Path) -> None:
    for path in run_copy.glob("archive/*/state.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    found = bisect("run", run_copy, "--json")
    assert (found.code, found.json["first_corrupt"], found.json["proven"]) == (1, 10, True)
    one_line(
        bisect("verify", run_copy, "--recorded"), 5, "checkpoint 10 is corrupt", "no clean one"
    )


def test_a_run_without_checkpoints(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "archive")
    one_line(bisect("run", run_copy), 5, "no checkpoint there")


def test_a_damaged_run_json(run_copy: Path) -> None:
    (run_copy / "run.json").write_text('{"name": "cut', encoding="utf-8")
    one_line(bisect("run", run_copy), 2, "run.json cannot be read")


def test_a_resume_command_that_fails(faulty_run: Path) -> None:
    fails = "import sys; print('CUDA out of memory', file=sys.stderr); sys.exit(9)"
    answer = bisect("verify", faulty_run, "--", preloaded.python(), "-c", fails, "{ckpt}")
    one_line(answer, 2, "ended with 9", "CUDA out of memory")
    absent = bisect("verify", faulty_run, "--", "no-such-program", "{ckpt}")
    one_line(absent, 2, "cannot be started")
    silent = bisect("verify", faulty_run, "--", preloaded.python(), "-c", "pass", "{ckpt}")
    one_line(silent, 2, "no guard recorded it")
    nameless = bisect("verify", faulty_run, "--", preloaded.python(), "-c", "pass")
    one_line(nameless, 2, "does not name {ckpt}")
    one_line(bisect("verify", faulty_run), 2, "how is the training resumed?", "--recorded")


def test_arguments_that_cannot_be_right(clean_run: Path) -> None:
    swapped = bisect("verify", clean_run, "--recorded", "--from", 40, "--to", 20)
    one_line(swapped, 2, "swapped?")
    unknown = bisect("run", clean_run, "--attempt", 7)
    one_line(unknown, 2, "no attempt 7", "it has 1")
    blind = bisect("run", clean_run, "--", "true")
    one_line(blind, 2, "names neither {ckpt} nor {step}")


def test_the_dashboard_says_what_is_missing(tmp_path: Path) -> None:
    answer = guard_command("sql", tmp_path, "SELECT 1")
    one_line(answer, 2, "this folder is empty")


def test_another_model_in_the_same_folder(run_copy: Path) -> None:
    from sdc_guard import Guard, SdcGuardError

    model = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = (run_copy / "run.json").read_bytes()
    with pytest.raises(SdcGuardError, match=r"another model: norm\.weight was float32 \[128\]"):
        Guard(model, optimizer, run=run_copy)
    assert (run_copy / "run.json").read_bytes() == before
