"""`sdc-bisect run` as it is typed, over files that no guard ever saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from forensics.cli import main

STEPS = range(100, 1300, 100)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    for step in STEPS:
        torch.save({"step": step, "w": torch.zeros(1)}, folder / f"step-{step}.pt")
    return folder


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def judge(script: str) -> list[str]:
    """A judge in shell: $1 is the step."""
    return ["--", "/bin/sh", "-c", script, "judge", "{step}"]


def run(*arguments: object) -> Answer:
    done = CliRunner().invoke(main, ["run", *map(str, arguments)], prog_name="sdc-bisect")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


BAD_FROM_700 = "[ $1 -lt 700 ]"


@pytest.mark.parametrize("options", [[], ["--jobs", 3], ["--trust-ends"], ["--skip", "300, 1000"]])
def test_ways_to_the_same_answer(archive: Path, options: list[object]) -> None:
    found = run(archive, "--json", *options, *judge(BAD_FROM_700))
    assert found.code == 1
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (600, 700)
    assert found.json["exact"] is True
    assert found.json["claim"] == "transition"
    judged = [probe["step"] for probe in found.json["probes"]]
    assert len(judged) == len(set(judged))
    told = [line for line in found.err.splitlines() if line.startswith("  step ")]
    assert len(told) == len(judged)


def test_a_range(archive: Path) -> None:
    found = run(archive, *judge("case $1 in 500|600) exit 125;; esac; [ $1 -lt 600 ]"))
    assert found.code == 3
    assert "is in (400, 700]; untestable: 500, 600" in found.out


def test_a_scan(archive: Path) -> None:
    found = run(archive, "--scan", "--json", *judge("[ $1 -lt 700 ] || [ $1 = 900 ]"))
    assert [(one["from"], one["to"]) for one in found.json["transitions"]] == [
        (600, 700), (800, 900), (900, 1000),
    ]  # fmt: skip
    assert (found.json["claim"], found.json["monotone"]) == ("first", False)
    assert len(found.json["probes"]) == len(STEPS)


def test_the_first_good_one(archive: Path) -> None:
    found = run(archive, "--first-good", *judge("[ $1 -ge 700 ]"))
    assert found.code == 1
    assert "Checkpoint 700, if what is clean stays clean, is the first clean one" in found.out


def test_a_noisy_judge(archive: Path) -> None:
    rates = ["--false-positive", "0.01", "--false-negative", "0.01"]
    found = run(archive, "--noisy", "--random-oracle", *rates, "--json", *judge(BAD_FROM_700))
    assert found.json["first_corrupt"] == 700
    assert found.json["confidence"] >= 0.95
    assert found.json["likely"][0]["step"] == 700
    assert found.json["proven"] is False
    ranged = run(archive, "--noisy", *judge(BAD_FROM_700))
    assert ranged.code in (1, 3)
    assert "with a probability of 9" in ranged.out


def test_a_judge_that_is_run_several_times(archive: Path, tmp_path: Path) -> None:
    # fails each second time that a corrupt one is judged
    script = f"[ $1 -lt 700 ] && exit 0; mkdir '{tmp_path}/x' 2>&- && exit 1; rmdir '{tmp_path}/x'"
    found = run(archive, "--repeat", 6, "--json", *judge(script))
    assert (found.code, found.json["first_corrupt"]) == (1, 700)
    rates = {one["step"]: (one["passed"], one["runs"]) for one in found.json["pass_rates"]}
    assert rates[1200] == (3, 6)
    assert rates[100] == (6, 6)
    assert found.json["stable"] is True


def test_a_judge_that_fails_anywhere(archive: Path, tmp_path: Path) -> None:
    script = f"mkdir '{tmp_path}/x' 2>&- && exit 1; rmdir '{tmp_path}/x'"
    found = run(archive, "--repeat", 6, *judge(script))
    assert found.code == 3
    assert found.out.startswith("No stable boundary")
    assert "step 100 failed 3 of 6 runs, step 1200 failed 3 of 6 runs" in found.out


def test_a_dry_run_judges_nothing(archive: Path, tmp_path: Path) -> None:
    script = judge(f"touch '{tmp_path}/judged'")
    plan = run(archive, "--dry-run", "--cost", 60, "--json", *script).json
    assert plan["schema"]["name"] == "sdc-bisect.run-plan"
    # 2 ends; ⌈log2 11⌉ = 4 for 11 edges between them; 2 if all are of one kind
    assert (plan["probes"]["best"], plan["probes"]["worst"]) == (2, 6)
    assert plan["seconds"]["judging"] == pytest.approx(60 * plan["probes"]["expected"])
    words = run(archive, "--dry-run", "--jobs", 3, *script).out
    assert "12 checkpoints to search; nothing was judged" in words
    assert "rounds of up to 3" in words
    assert "--cost SECONDS" in words
    scan = run(archive, "--dry-run", "--scan", "--skip", "300", "--json", *script).json
    assert (scan["probes"]["best"], scan["probes"]["worst"], scan["seconds"]) == (11, 11, None)
    noisy = run(archive, "--dry-run", "--noisy", "--random-oracle", *script).out
    assert "false positives 0.05 and false negatives 0.2, by simulation" in noisy
    assert not (tmp_path / "judged").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--good", 500, "--bad", 100], "bad is before good: swapped?"),
        (["--skip", "30x"], "steps are whole numbers"),
        (["--noisy", "--repeat", 3], "give --noisy or --repeat, not both"),
        (["--scan", "--trust-ends"], "give --scan or --trust-ends, not both"),
        (["--random-oracle"], "--random-oracle needs to know"),
        (["--executor", "ray"], "--executor ray needs Ray"),
    ],
)
def test_what_cannot_be_right_is_one_line(
    archive: Path, options: list[object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    found = run(archive, *options, *judge("exit 0"))
    assert found.code == 2
    assert len(found.err.splitlines()) == 1
    assert says in found.err


def test_the_empty_folder(tmp_path: Path) -> None:
    found = run(tmp_path, *judge("exit 0"))
    assert (found.code, len(found.err.splitlines())) == (5, 1)
    assert "no checkpoint there" in found.err


def test_ctrl_c_ends_the_command_and_says_what_is_known(archive: Path, tmp_path: Path) -> None:
    script = (
        f"[ $1 = 1200 ] && exit 1; [ $1 = 100 ] && exit 0; echo $$ >> '{tmp_path}/pid'; "
        f"touch '{tmp_path}/'ready-$1; exec sleep 100"
    )
    command = [sys.executable, "-m", "forensics.cli", "run", str(archive), "--jobs", "2"]
    process = subprocess.Popen(
        [*command, *judge(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        start_new_session=True,  # so that the signal reaches this process alone
    )
    while len(list(tmp_path.glob("ready-*"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "sdc-bisect: stopped after 2 judgings, clean: 100; corrupt: 1200" in err
    assert "Traceback" not in err
    for pid in (tmp_path / "pid").read_text(encoding="utf-8").split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
