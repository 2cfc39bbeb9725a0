"""The campaign's file: killed and gone on with, refused where it is another's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from sdc_guard.campaign.command import environment, run_campaign
from sdc_guard.campaign.plan import Plan, Trial
from sdc_guard.campaign.results import Results, file_of
from sdc_guard.campaign.tables import TABLES
from sdc_guard.campaign.trial import failed_rows
from sdc_guard.campaign.workers import Outcome, Pool, Task, run_task
from sdc_guard.cli import main
from sdc_guard.errors import CommandFailed, UsageError

PLAN = Plan(
    models=("convnet",), mixes=("uniform",), sites=("weight", "exp_avg", "file"), twins=(300,),
    calibration=(), judging=(200,), snapshots=(4,), after=4, clean_steps=4,
)  # fmt: skip
TRIALS = 6
TIMING = {"trial": 1, "what": "trial", "seconds": 0.5, "cpu": 0.4, "rss": 5}

# what is killed: the very campaign, with two processes
SCRIPT = f"""
import sys
from pathlib import Path
from sdc_guard.campaign.command import run_campaign
from sdc_guard.campaign.plan import Plan
say = lambda line: print(line, file=sys.stderr, flush=True)
run_campaign(Path(sys.argv[1]), {PLAN!r}, {TRIALS}, 2, say)
"""


def content(path: Path) -> dict[str, list[Any]]:
    """All rows but those of time, in an order that does not depend on when they came."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return {
            table: sorted(map(repr, connection.execute(f"FROM {table}").fetchall()))
            for table in TABLES
            if table not in ("timing", "environment")
        }


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tasks run here instead of in processes of their own; those that did."""
    done: list[Any] = []

    def run(pool: Any, tasks: Any) -> Any:
        for task in tasks:
            done.append(task)
            yield run_task(task, pool._plan, pool._root)

    monkeypatch.setattr(Pool, "run", run)
    return done


@pytest.mark.slow
def test_kill_and_resume_give_the_rows_of_one_go(
    tmp_path: Path, in_this_process: list[Any]
) -> None:
    killed, whole = tmp_path / "killed.duckdb", tmp_path / "whole.duckdb"
    command = [sys.executable, "-c", SCRIPT, str(killed)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("trials: 1 of"):
                break
        os.kill(process.pid, signal.SIGKILL)
    assert lines[-1].startswith("trials: 1 of 8"), "".join(lines)  # two controls
    with Results(killed, PLAN.text(), {}) as results:
        survived = results.trials()
    assert 1 <= len(survived) <= 8
    summary = run_campaign(killed, PLAN, TRIALS, 1, lambda _: None)
    again = [task.number for task in in_this_process if isinstance(task, Trial)]
    assert sorted([*survived, *again]) == [-2, -1, 0, 1, 2, 3, 4, 5]
    in_this_process.clear()
    assert run_campaign(whole, PLAN, TRIALS, 1, lambda _: None).cells == summary.cells
    assert content(killed) == content(whole)
    assert summary.sound
    assert (summary.controls, summary.differing) == (2, 0)
    found = {cell.site: (cell.scored, cell.proven, cell.manifest) for cell in summary.cells}
    assert found == {"weight": (2, 2, 0), "exp_avg": (2, 2, 0), "file": (2, 0, 2)}
    assert any("2 trials without a fault, 0 not as" in line for line in summary.lines())
    in_this_process.clear()
    assert run_campaign(whole, PLAN, TRIALS, 1, lambda _: None) == run_campaign(
        whole, PLAN, TRIALS - 3, 1, lambda _: None
    )
    assert not in_this_process  # nothing was left to do
    run_campaign(whole, PLAN, TRIALS + 1, 1, lambda _: None)
    assert [t.number for t in in_this_process if isinstance(t, Trial)] == [TRIALS]


def test_another_plan_in_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    Results(path, Plan(seed=1).text(), environment()).close()
    Results(path, Plan(seed=1).text(), {}).close()
    with pytest.raises(UsageError, match=r"another plan .*c\.duckdb"):
        Results(path, Plan(seed=2).text(), {})


def test_what_is_no_campaigns_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, other, flipped = (tmp_path / f"{name}.duckdb" for name in ("text", "other", "flipped"))
    text.write_text("no database")
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS one")
    content = bytearray(other.read_bytes())
    content[4097 + 8 : 4097 + 40] = bytes(32)  # of the header, which has a checksum before it
    content[8192 + 9 : 8192 + 40] = bytes(31)
    flipped.write_bytes(content)
    for path in (text, other, flipped):
        before = path.read_bytes()
        with pytest.raises(UsageError, match=path.name) as raised:
            Results(path, "{}", {})
        assert raised.value.next_step == "give another path"
        assert path.read_bytes() == before


def test_a_file_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError) as raised:
            Results(path, "{}", {})
        process.communicate("\n")
    assert "\n" not in str(raised.value)
    assert raised.value.next_step.startswith("wait for who uses it")


def test_rows_of_one_task_come_all_or_none(tmp_path: Path) -> None:
    rows = {"trials": failed_rows(PLAN.trial(1), "why")["trials"], "trial_steps": [{"nothing": 1}]}
    with Results(tmp_path / "c.duckdb", "{}", {}) as results:
        with pytest.raises(ValueError, match="trial_steps has no nothing"):
            results.add(rows, TIMING)
        assert not results.trials()
        results.add({"trials": rows["trials"]}, TIMING)
        assert results.trials() == {1}
        assert results.rows("SELECT status, error FROM trials") == [("failed", "why")]


def test_a_twin_of_other_bits_ends_the_campaign(tmp_path: Path) -> None:
    twin = PLAN.twin_runs()[0]

    def rows(state: str) -> Any:
        whose = {"purpose": "twin", "model": twin.model, "seed": twin.seed}
        steps = [{**whose, "step": step, "state": state * step} for step in (1, 2)]
        return {"clean_steps": steps, "clean_runs": [{**whose, "steps": 2}]}

    with Results(tmp_path / "c.duckdb", "{}", {}) as results:
        results.add_twin(twin, rows("a"), TIMING)
        results.add_twin(twin, rows("a"), TIMING)
        with pytest.raises(UsageError, match=r"trains to other bits here.*seed 300, step 1"):
            results.add_twin(twin, rows("b"), TIMING)
        assert results.rows("SELECT count(*) FROM clean_steps") == [(2,)]


def test_a_full_disk_ends_the_campaign_and_marks_no_trial_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pool: Pool, tasks: list[Task]) -> Iterator[Outcome]:
        for task in tasks:
            if isinstance(task, Trial):
                yield Outcome(task, None, "OSError: No space left on device", 1.0, None, None, True)
            else:
                yield Outcome(task, {"clean_steps": []}, "", 1.0, None, None)

    monkeypatch.setattr(Pool, "run", full)
    path = tmp_path / "c.duckdb"
    with pytest.raises(CommandFailed, match="No space left"):
        run_campaign(path, PLAN, 1, 1, lambda _: None)
    with Results(path, PLAN.text(), {}) as results:
        assert not results.trials()


def test_a_folder_or_a_file(tmp_path: Path) -> None:
    assert file_of(tmp_path) == tmp_path / "campaign.duckdb"
    assert file_of(tmp_path / "new") == tmp_path / "new" / "campaign.duckdb"
    assert file_of(tmp_path / "x.duckdb") == tmp_path / "x.duckdb"


def test_the_command_answers_in_json_and_refuses_another_seed(
    tmp_path: Path, in_this_process: list[Any]
) -> None:
    call = ["campaign", str(tmp_path), "--quick", "--model", "convnet", "--site", "weight"]
    call += ["--mix", "uniform", "--json"]
    done = CliRunner().invoke(main, [*call, "--trials", "1"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["schema"] == {"name": "sdc-guard.campaign", "version": 1}
    assert [cell["site"] for cell in answer["cells"]] == ["weight"]
    assert (answer["sound"], answer["controls"], answer["differing"]) == (True, 3, 0)
    assert "trials: 4 of 4" in done.stderr
    refused = CliRunner().invoke(main, [*call, "--seed", "1"])
    assert refused.exit_code == 2
    assert "another plan" in json.loads(refused.stdout)["error"]["what"]
    unknown = CliRunner().invoke(main, ["campaign", str(tmp_path), "--site", "disk"])
    assert unknown.exit_code == 2
    assert len(unknown.stderr.splitlines()) == 1
    assert "no site 'disk'" in unknown.stderr
