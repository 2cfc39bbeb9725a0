"""The self-test as a user calls it, and among real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest
from conftest import ROOT, guard_command, run

from sdc_guard.selftest.command import CLAIM

HERE = Path(__file__).resolve().parent


SMALL_COPIES = """
from sdc_guard import cli
from sdc_guard.selftest import copies
copies.SIZES = copies.SIZES[:-1]
cli.main(["selftest", "--json"])
"""


@pytest.mark.parametrize("largest", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_passes_on_this_machine(largest: bool) -> None:
    answer = guard_command("selftest", "--json") if largest else run(["-c", SMALL_COPIES])
    told = answer.json
    verdicts = {line["name"]: line["verdict"] for line in told["lines"]}
    reasons = [line["reason"] for line in told["lines"] if line["verdict"] != "PASS"]
    expected = 0 if set(verdicts.values()) == {"PASS"} else 3
    # a small machine has no memory for the largest copies, and says so
    assert set(verdicts.values()) <= {"PASS", "INCOMPLETE"}, reasons
    assert [reason for reason in reasons if "no memory" not in reason] == []
    assert answer.code == expected
    assert told["schema"] == {"name": "sdc-guard.selftest", "version": 1}
    assert len(verdicts) == len(told["lines"]) >= 24
    assert all(line["reason"] and line["seconds"] >= 0 for line in told["lines"])
    assert CLAIM not in answer.out
    assert answer.err == ""


def test_ranks_send_each_other_data_and_the_pair_that_is_wrong_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = [preloaded.python(), str(HERE / "selftest_ranks.py")]
    processes = [
        subprocess.Popen(
            [*script, str(rank), "2", str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for rank in range(2):
        told = json.loads((tmp_path / f"told.{rank}.json").read_text(encoding="utf-8"))
        assert [line["verdict"] for line in told] == ["FAIL", "PASS", "PASS", "FAIL"]
        assert told[0]["reason"] == "rank 1: of rank 1"
        assert "2 ways" in told[1]["reason"]
        (wrong,) = told[3]["detail"]["wrong"]
        assert (wrong["from"], wrong["to"]) == ("rank 0", "rank 1")
        assert wrong["words"] == 3 * 6  # one in each of three sizes of six patterns


@pytest.mark.slow
def test_the_command_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "sdc_guard.cli", "selftest", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    told = json.loads(done.stdout)
    assert told["verdict"] == "PASS"
    assert told["lines"][-1]["section"] == "between ranks"
