"""The page of what to do, and the files that it offers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hand_made import NAMES, Trace, clean_run, corrupt_run, make_run
from made_sessions import BRACKET, LOCATED, answered, search, verification
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from app.reported import FILES, KeptAnswer, report_file
from forensics.cli import main
from forensics.reporting.at_place import answer_at, report_at
from sdc_guard import RunReader
from sdc_guard.detect.alert import Alert
from sdc_guard.store.opening import open_run
from sdc_guard.store.run_file import RunFile

Open = Callable[..., AppTest]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs" / "recorded"


@pytest.fixture
def open_act(monkeypatch: pytest.MonkeyPatch) -> Open:
    return lambda run, **query: page_of(monkeypatch, "act", run, **query)


def rows(app: AppTest) -> dict[str, str]:
    """What to do, by what it is about."""
    found = {one.label: str(one.value) for one in app.metric}
    lines = (one.value.replace("\\", "") for one in app.markdown)
    pairs = (line.split(":** ", 1) for line in lines if ":** " in line)
    return found | {what.lstrip("*"): text for what, text in pairs}


def test_a_clean_run(tmp_path: Path, open_act: Open) -> None:
    app = open_act(clean_run(tmp_path / "run"))
    assert "✔ No incident: no check found anything in 40 steps recorded." in said(app)
    told = rows(app)
    assert told["Checkpoint"].startswith("Nothing says that the training has to go back.")
    assert (told["Discard"], told["Quarantine"]) == ("nothing", "nothing. Nothing is accused.")


def test_nothing_recorded_yet(tmp_path: Path, open_act: Open) -> None:
    app = open_act(make_run(tmp_path / "run"))
    assert "? Nothing to judge: no step is recorded." in said(app)
    assert "Not known: too little was recorded" in said(app)


def test_a_located_fault(tmp_path: Path, open_act: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    attempt = RunFile.read(run).attempts[0]
    known = replace(attempt, environment={"host": "node-7"})
    replace(RunFile.read(run), attempts=(known,)).write(run)
    answered(search(run, [(40, "corrupt")]), BRACKET, run)
    answered(verification(run, ("replay-1", 20, 40, True)), LOCATED, run)
    app = open_act(run)
    text = said(app)
    assert "✖ Corrupt, proven: step 27 is the first corrupted step on rank 0" in text
    told = rows(app)
    assert told["Quarantine"].startswith("nothing. It happened once")
    assert told["Test"] == "the host node-7, where the step ran: sdc-guard selftest"
    assert f"sdc-guard selftest --run {run}" in text
    assert "Proven by an exact comparison, and located exactly." in text
    assert "What would disprove it" in text
    assert "Whether it comes again" in text
    # the archive is empty: no step to go on from is made up
    assert "There is no readable checkpoint up to step 26" in told["Checkpoint"]
    assert "sdc-guard restore" not in text


def test_the_machine_of_the_accused_rank_is_named_and_not_convicted(
    tmp_path: Path, open_act: Open
) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank in range(2):
        with Trace(run, rank=rank) as trace:
            trace.start(1, f"node-{rank}", f"cuda:{rank} (NVIDIA H200)")
            trace.steps(1, 40)
            if rank == 1:
                trace.alert(27, text="param changed", kind="param")
                trace.incident(27, 1, 27, proven=True)
    told = rows(open_act(run))
    assert told["It ran on"] == (
        "host node-1, cuda:1 (NVIDIA H200) (rank 1, recorded as attempt 1 began). Proven is that "
        "it happened on that rank; that this machine is broken is not. Test it, and see whether "
        "it strikes again."
    )
    assert told["Quarantine"].startswith("nothing.")


def test_a_device_that_two_others_convict(tmp_path: Path, open_act: Open) -> None:
    run = make_run(tmp_path / "run")
    verdict = "persistent on a device"
    detail = {"text": f"{verdict}: two agree", "verdict": verdict, "device": "GPU-1", "rank": 0}
    alert = Alert(27, "step_audit", None, "", 1.0, 0.0, "proven", detail)
    with Trace(run) as trace:
        trace.steps(1, 40)
        trace.row("alerts", 27, layer=None, detector="step_audit", score=1.0, threshold=0.0,
                  severity="proven", detail=alert.detail_json())  # fmt: skip
    assert rows(open_act(run))["Quarantine"] == f"GPU-1: {verdict}: two agree"


def test_all_checkpoints_held_back(tmp_path: Path, open_act: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.steps(1, 40)
        trace.alert(5, text="changed")
        trace.incident(5, 1, 5, proven=True)
        trace.checkpoint(20, "suspect", "incident open")
        trace.checkpoint(40, "suspect", "incident open")
    app = open_act(run)
    told = rows(app)
    assert "no readable checkpoint up to step 4" in told["Checkpoint"]
    assert (told["Discard"], told["Time lost"]) == ("nothing", "–")
    assert "Where to go on from is open" in said(app)
    assert f"sdc-bisect run {run}" in said(app)


def test_names_from_the_run_are_no_markdown(tmp_path: Path, open_act: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    evil = "![x](http://example.com/x.png)"
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace(json.dumps(NAMES[1]), json.dumps(evil)))
    result = LOCATED | {"tensors": [{"kind": "param", "name": evil}], "evidence": [evil]}
    answered(verification(run), result, run)
    app = open_act(run)
    assert evil in said(app)
    assert not any("](http" in str(element.value) for element in (*app.markdown, *app.error))


def test_a_run_that_cannot_be_read_is_one_line(tmp_path: Path, open_act: Open) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"format":')
    app = open_act(run)
    assert "run.json cannot be read" in said(app)


def test_the_files_are_those_of_the_command(tmp_path: Path) -> None:
    run = corrupt_run(tmp_path / "run")
    answered(search(run, [(40, "corrupt"), (20, "clean")]), BRACKET, run)
    for form in FILES:
        output = tmp_path / f"told.{form}"
        done = CliRunner().invoke(main, ["report", str(run), "-o", str(output)])
        assert done.exit_code == 0, done.output
        assert undated(report_file(str(run), form)) == undated(output.read_bytes())
        assert b"Checkpoint 40" in output.read_bytes()


def undated(content: bytes) -> bytes:
    """Without the moment at which a report was made; what the run says is of 2001."""
    content = re.sub(rb'"made": [0-9.]+', b'"made": ', content)
    return re.sub(rb"20[2-9]\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", b"", content)


def test_an_answer_is_made_when_the_run_changed_and_not_at_each_look(tmp_path: Path) -> None:
    now = [1e9]
    run = clean_run(tmp_path / "run")
    kept = KeptAnswer(str(run), clock=lambda: now[0])
    with RunReader(run) as reader:
        first = kept.of(1, reader)
        assert kept.of(1, reader) is first
        assert kept.of(2, reader) is first  # it was made in this very moment
        assert kept.lags(2)
        now[0] += 60
        assert kept.of(1, reader) is first
        assert kept.of(2, reader) is not first
        assert not kept.lags(2)


def note(monkeypatch: pytest.MonkeyPatch, reader: RunReader, asked: list[str]) -> None:
    """Note what is asked of a reader."""
    rows = reader.rows
    monkeypatch.setattr(reader, "rows", lambda query, *a: asked.append(query) or rows(query, *a))


def test_the_answer_is_the_reports_and_takes_no_pass_over_the_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, corrupt = clean_run(tmp_path / "clean"), corrupt_run(tmp_path / "corrupt")
    searched = corrupt_run(tmp_path / "searched")
    answered(search(searched, [(40, "corrupt"), (20, "clean")]), BRACKET, searched)
    for run in (clean, corrupt, searched, make_run(tmp_path / "empty")):
        report = report_at(str(run), None, 1e9, open_run)
        asked: list[str] = []
        with RunReader(run) as reader:
            note(monkeypatch, reader, asked)
            known = answer_at(str(run), reader)
        assert (known.headline, known.go_back) == (report.headline, report.go_back)
        assert report.recorded is not None
        assert known.last == report.recorded.last
        assert asked
        assert not [q for q in asked if re.search(r"FROM (digests|layers)", q)]


@pytest.mark.parametrize("table", ["checkpoints", "events", "shadow", "steps"])
def test_a_damaged_block_keeps_the_answer_from_clean(tmp_path: Path, table: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(SAMPLES / "clean", run)
    (seal,) = (run / "trace" / table).rglob("*.duckdb")
    content = bytearray(seal.read_bytes())
    for place in range(3 * 4096, len(content), 4096):  # behind the headers
        content[place + 100] ^= 1
    seal.write_bytes(content)
    with RunReader(run) as reader:
        known = answer_at(str(run), reader)
    report = report_at(str(run), None, 0.0, open_run)
    assert known.headline == report.headline
    assert known.headline.state == "unknown"


def test_no_file_is_made_before_it_is_asked_for(
    tmp_path: Path, open_act: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr("app.reported.written", lambda _, form: made.append(form) or "")
    app = open_act(clean_run(tmp_path / "run"))
    assert len(app.get("download_button")) == len(FILES)
    app.run()
    assert made == []
