"""The page of searches, in every state that a session can be in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import clean_run, corrupt_run
from made_sessions import BRACKET, LOCATED, answered, search, verification
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from app.searching import launch, starting
from app.searching.starting import choices
from forensics.sessions.process import working_on
from sdc_guard.store.run_file import RunFile

Open = Callable[..., AppTest]
COURSE = [(40, "corrupt"), (20, "clean")]


@pytest.fixture
def open_bisect(monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.delenv("SDC_GUARD_JUDGE", raising=False)
    return lambda run, **query: page_of(monkeypatch, "bisect", run, **query)


def buttons(app: AppTest) -> list[str]:
    return [one.label for one in app.button if one.key and not one.key.startswith("to ")]


def test_nobody_has_searched(tmp_path: Path, open_bisect: Open) -> None:
    run = clean_run(tmp_path / "run")
    app = open_bisect(run)
    text = said(app)
    assert "Nobody has searched this run yet" in text
    assert f"sdc-bisect run {run}" in text
    assert buttons(app) == ["Start"]  # no resume command is recorded, and no judge was allowed
    assert not (run / "bisect").exists()  # to look is to write nothing


def test_an_answered_search(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    answered(search(run, COURSE), BRACKET, run)
    app = open_bisect(run)
    text = said(app)
    assert "✔ answered" in text
    assert "✖ Corrupt: Checkpoint 40 is the first corrupt one: bracket (20, 40], proven." in text
    assert [one.value for one in app.metric] == ["20", "40", "proven"]
    assert "param w changed between 26 and 27" in text
    assert "What would disprove it" in text
    assert "2 judged in 1 s of checkpoints of 20 MB together." in text
    (graph,) = app.get("graphviz_chart")
    assert "first corrupt one" in graph.proto.spec
    rows = app.table[0].value
    assert list(rows["answer"]) == ["✖ corrupt", "● clean"]
    assert list(rows["judged by"]) == ["the record", "the record"]


def test_an_answered_verification(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    made = verification(run, ("replay-1", 20, 40, True), ("replay-2", 20, 27, True))
    answered(made, LOCATED, run)
    app = open_bisect(run)
    text = said(app)
    assert "Corrupt, proven: step 27 is the first corrupted step on rank 0" in text
    assert "differs first" in app.get("graphviz_chart")[0].proto.spec
    assert list(app.table[0].value["steps"]) == ["21 to 40", "21 to 27"]
    assert "✔ answered" in text


def test_the_session_of_the_address(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    answered(search(run, COURSE), BRACKET, run)
    answered(verification(run, ("replay-1", 20, 40, True)), LOCATED, run)
    assert open_bisect(run).selectbox(key="session").value == "0002"
    app = open_bisect(run, session="0001")
    assert app.selectbox(key="session").value == "0001"
    assert app.query_params["session"] in ("0001", ["0001"])
    links = app.table[-1].value
    assert links["session"][0].startswith("[0002](bisect?run=run&session=0002")
    search(run, COURSE[:1]).stopped("interrupted")  # without an answer: not shown by itself
    for odd in ("9999", "../../etc"):
        app = open_bisect(run, session=odd)
        assert app.selectbox(key="session").value == "0002"
        assert f"There is no session {odd}; shown is 0002." in said(app)


def test_a_proof_is_shown_before_a_later_search_without_one(
    tmp_path: Path, open_bisect: Open
) -> None:
    run = corrupt_run(tmp_path / "run")
    proving = verification(run, ("replay-1", 20, 40, True))
    answered(proving, LOCATED, run)
    answered(search(run, COURSE), BRACKET, run)
    assert open_bisect(run).selectbox(key="session").value == proving.folder.name == "0001"
    assert open_bisect(run, session="0002").selectbox(key="session").value == "0002"


def test_one_that_runs_is_followed(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    made = verification(run, ("replay-1", 20, 40, False))
    with working_on(made.folder):
        app = open_bisect(run)
        text = said(app)
        assert "▶ Session 0001** is running" in text
        assert f"process {os.getpid()}" in text
        assert "▶ under way" in text
        assert "step 22 loss 1.5" in text
        # it was not started by a page, which may not end it
        assert "Ctrl-C in its terminal stops it" in text
        assert buttons(app) == []
    app.run()
    assert "◼ stopped: it ended without a word" in said(app)
    assert "Start" in buttons(app)


def test_one_that_was_stopped_says_why(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    made = search(run, COURSE[:1])
    made.stopped("interrupted")
    text = said(open_bisect(run))
    assert "◼ stopped: interrupted" in text
    assert "1 judged in 0.5 s" in text
    made = verification(run, ("replay-1", 20, 40, False))
    made.stopped("not reproducible, because the learning rate was another one")
    text = said(open_bisect(run))
    assert "◼ stopped: not reproducible, because the learning rate was another one" in text
    assert "◼ interrupted" in text


def test_one_that_a_user_judges_is_open(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    search(run, COURSE[:1], by=None)
    text = said(open_bisect(run))
    assert "○ open: a user judges in it" in text
    assert "a user" in text


def test_a_result_that_cannot_be_read(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    made = search(run, COURSE)
    result = made.folder / "result.json"
    result.write_text("{")
    app = open_bisect(run)
    for text in ("{", "[1]", '{"first_corrupt": "x"}', "\x00"):
        result.write_text(text)
        app.run()
        assert "? cannot be read" in said(app)
        assert "Its result" in said(app)


def test_a_journal_that_cannot_be_read(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    made = search(run, COURSE)
    app = open_bisect(run)
    for content in (b"", b"\xff\xfe\n{}", b'{"event": 5}\n'):
        made.journal.write_bytes(content)
        app.run()
        assert "cannot be read" in said(app)
    made.journal.unlink()
    app.run()
    assert "It has no journal." in said(app)


def test_a_search_that_judged_all_in_turn_is_no_tree(tmp_path: Path, open_bisect: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    search(run, [(step, "clean") for step in range(1, 30)])
    app = open_bisect(run)
    assert "29 checkpoints: too many to draw" in said(app)
    assert not app.get("graphviz_chart")
    assert len(app.table[0].value) == 29


def test_a_folder_that_cannot_be_written_offers_the_command(
    tmp_path: Path, open_bisect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = corrupt_run(tmp_path / "run")
    monkeypatch.setattr(launch.os, "access", lambda *_: False)
    app = open_bisect(run)
    text = said(app)
    assert f"No search can be started here: {run} cannot be written." in text
    assert f"sdc-bisect run {run}" in text
    assert buttons(app) == []


def test_only_what_was_allowed_can_be_started(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (one,) = choices(run, None, None)
    assert one.arguments == ("run", str(run))
    record, command, replay = choices(run, "python t.py {ckpt}", "python 'my check.py' {ckpt}")
    assert record == one
    assert command.arguments == ("run", str(run), "--", "python", "my check.py", "{ckpt}")
    assert command.command == shlex.join(("sdc-bisect", *command.arguments))
    assert replay.arguments == ("verify", str(run), "--recorded")
    assert replay.runs == "python t.py {ckpt}"
    assert len(choices(run, None, "python 'not closed")) == 1
    # a button that was pressed under another command than the one it had is none of these
    (_, changed) = choices(run, "rm -r {ckpt}", None)
    assert changed.key != replay.key


def test_what_is_run_is_shown_before(
    tmp_path: Path, open_bisect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = corrupt_run(tmp_path / "run")
    replace(RunFile.read(run), resume="python train.py {ckpt} {step}").write(run)
    pressed: list[tuple[str, ...]] = []
    monkeypatch.setattr(starting.Launcher, "start", lambda _, run, words: pressed.append(words))
    app = open_bisect(run)
    monkeypatch.setenv("SDC_GUARD_JUDGE", "python check.py {ckpt}")
    app.run()
    text = said(app)
    assert "python train.py {ckpt} {step}" in text
    assert "python check.py {ckpt}" in text
    starts = [one for one in app.button if one.label == "Start"]
    assert len(starts) == 3
    starts[1].click().run()
    assert pressed == [("run", str(run), "--", "python", "check.py", "{ckpt}")]


def test_a_run_in_a_lake_says_where_its_searches_are(open_bisect: Open) -> None:
    assert not open_bisect("ducklake:/nowhere.sqlite?run=x").exception
