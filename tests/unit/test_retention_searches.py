"""What open and answered searches hold of an archive, by the journals that they leave."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_archive import T0, MadeRun, apply

from forensics.cli import main as bisect_main


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run").saves(8)


def probe(step: int, verdict: str) -> dict[str, Any]:
    return {"event": "probe", "step": step, "checkpoint": f"step={step:06d}", "verdict": verdict}


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([probe(200, "clean"), probe(500, "corrupt")], [200, 300, 400, 500, 700]),
        ([probe(500, "corrupt")], [0, 100, 200, 300, 400, 500, 700]),
        ([probe(500, "clean"), probe(300, "untestable")], [400, 500, 600, 700]),
        ([probe(500, "clean"), probe(300, "corrupt")], list(range(0, 800, 100))),
        ([probe(200, "clean"), probe(500, "corrupt"), {"event": "undo"}], list(range(0, 800, 100))),
        ([], list(range(0, 800, 100))),
    ],
)
def test_an_open_search(run: MadeRun, events: list[dict[str, Any]], kept: list[int]) -> None:
    run.search(*events)
    apply(run, 1)
    assert run.steps == kept


def test_a_search_whose_journal_is_damaged_or_that_others_hold(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = run.search(probe(200, "clean"), probe(500, "corrupt"))
    journal.write_text(journal.read_text() + '{"event": "pro')
    assert apply(run)["deleted"] == []
    shutil.move(run.folder / "bisect", run.folder.parent / "elsewhere")
    monkeypatch.setenv("SDC_BISECT_SESSION", str(run.folder.parent / "elsewhere"))
    assert apply(run)["deleted"] == []
    monkeypatch.delenv("SDC_BISECT_SESSION")
    assert len(apply(run)["deleted"]) == 6


def test_a_replay_that_goes_on_and_one_that_was_given_up(run: MadeRun) -> None:
    journal = run.search(marked=False)
    journal.write_text('{"event": "replay", "name": "clean-to-corrupt"}\n')
    assert apply(run)["deleted"] == []
    answer = {"command": "verify", "last_clean": 12, "first_corrupt": 13}
    (journal.parent / "result.json").write_text(json.dumps(answer))
    assert len(apply(run, 4)["deleted"]) == 4
    (journal.parent / "result.json").unlink()
    os.utime(journal, (T0, T0))
    assert len(apply(run, 2)["deleted"]) == 2


def test_a_search_that_sdc_bisect_began(run: MadeRun) -> None:
    def bisect(*arguments: object) -> None:
        done = CliRunner().invoke(bisect_main, [str(one) for one in arguments])
        assert done.exit_code in (0, 3), done.output

    bisect("start", run.folder)
    apply(run, 1)
    assert run.steps == list(range(0, 800, 100))
    bisect("good", run.folder, 200)
    bisect("bad", run.folder, 500)
    apply(run, 1)
    assert run.steps == [200, 300, 400, 500, 700]
    bisect("reset", run.folder)
    apply(run, 1)
    assert run.steps == [700]


@pytest.mark.parametrize(
    "asked", [{"first_good": True}, {"noise": {}, "scan": True}, {"repeat": 3}]
)
def test_a_search_of_another_kind_holds_everything(run: MadeRun, asked: dict[str, Any]) -> None:
    journal = run.search(probe(200, "clean"), probe(500, "corrupt"))
    start = json.dumps({"event": "start", "asked": asked})
    journal.write_text("\n".join([start, *journal.read_text().splitlines()[1:]]))
    assert apply(run, 1)["deleted"] == []


def test_the_bracket_that_a_search_found_stays_for_a_month(run: MadeRun) -> None:
    result = run.search(marked=False).with_name("result.json")
    result.write_text("{")
    assert apply(run, 1)["deleted"] == []
    result.write_text(json.dumps({"command": "run", "last_clean": 200, "first_corrupt": 300}))
    apply(run, 1)
    assert run.steps == [200, 300, 700]
    os.utime(result, (T0, T0))
    apply(run, 1)
    assert run.steps == [700]
