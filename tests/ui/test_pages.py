"""Every page in every state, through Streamlit's own test runner."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hand_made import NAMES, Trace, clean_run, corrupt_run, make_run, watched_run
from paged import MAIN, page_of, said
from streamlit.testing.v1 import AppTest

from forensics.journal import Session
from forensics.result import Result
from sdc_guard.store.reader import RunReader

TIMELINE = "timeline"

Open = Callable[..., AppTest]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """open_page(run, page, **query): the page as it is after it has rendered."""

    def opened(run: Path, page: str = "incidents", /, **query: str) -> AppTest:
        return page_of(monkeypatch, page, run, **query)

    return opened


def test_incidents_of_a_corrupt_run(tmp_path: Path, open_page: Open) -> None:
    app = open_page(corrupt_run(tmp_path / "run"))
    text = said(app)
    assert len(app.error) == 1
    assert "✖ Corrupt: an exact comparison found a change." in text
    assert "✖ proven" in text
    assert "Alerts of the incident opened at step 27" in text
    (alert,) = app.table[0].value.to_dict("records")
    shown = {key: str(value).replace("\\", "") for key, value in alert.items()}
    layer, cell = shown.pop("layer").removesuffix(")").split("](locate?")
    assert layer == f"[{NAMES[1]}"
    asked = {"run": "run", "incident": "27", "step": "27", "layer": NAMES[1], "rank": "0"}
    assert parse_qs(cell) == {key: [value] for key, value in asked.items()}
    assert shown == {
        "step": "27",
        "detector": "carried_digest",
        "place": "param, element 3, bits 19, 30",
        "before → after": "0x3ba35eef → 0x3bab5eef",
        "score": "exact",
        "text": "param changed between step 26 and step 27",
    }


def test_incidents_of_a_clean_run_say_what_was_checked(tmp_path: Path, open_page: Open) -> None:
    app = open_page(clean_run(tmp_path / "run"))
    text = said(app)
    assert len(app.success) == 1
    assert "✔ Clean so far: no check found anything in 40 steps recorded (1 to 40)." in text
    assert "None was opened." in text
    assert "40 (1 to 40), by 1 of 1 rank" in text
    assert "78 digests compared exactly, over 39 steps" in text
    assert "2 of 2 layers measured" in text
    assert "4 passes, the newest at step 40" in text
    assert "Not seen by these checks" in text


def test_a_digest_budget_is_told_wherever_something_is_called_clean(
    tmp_path: Path, open_page: Open
) -> None:
    app = open_page(watched_run(tmp_path / "run"))
    text = said(app)
    assert "✔ Clean so far" in text
    assert "- 50 % of the state's transitions from step to step were compared" in text
    assert "40 digests compared exactly, over 40 steps: 50 % of the state's" in text


def test_a_replay_gives_an_incident_its_verdict(tmp_path: Path, open_page: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    result = Result("verify", 26, 27, exact=True, proven=True, verdict="intermittent").as_dict()
    assert "intermittent" not in said(open_page(run))
    Session.new(run).finish(result, at=1e9)
    text = said(open_page(run))
    assert "intermittent (session 0001)" in text
    assert "Finished 2001-09-09 01:46:40 UTC." in text


def test_a_run_that_has_ended_is_not_recording(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.row("steps", 5, time=time.time(), loss=1.0)
    assert "recording, newest step 5" in said(open_page(run))
    with Trace(run) as trace:
        trace.row("events", 6, kind="end", detail="")
    text = said(open_page(run))
    assert "recording" not in text
    assert ": ended" in text


def test_a_skipped_step_is_told(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.row("steps", 5, loss=1.0, loss_scale=1024.0, skipped=True)
        trace.row("steps", 6, loss=1.0, loss_scale=512.0, skipped=False)
    first = open_page(run, TIMELINE, step="5").table[0].value.iloc[0]
    assert (first["loss scale"], first["update"]) == ("1024", "skipped")
    assert "update" not in open_page(run, TIMELINE, step="6").table[0].value


def test_statistics_alone_are_a_suspicion(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.steps(1, 9)
        trace.alert(5, "suspect", text="gradient 44 times its average")
        trace.incident(5, 1, 5, proven=False)
    app = open_page(run)
    text = said(app)
    assert not app.error
    assert "▲ Suspect: nothing is proven." in text
    assert "▲ statistics only" in text
    assert "44 (limit 32)" in text
    assert list(app.table[0].value) == ["step", "layer", "detector", "score", "text"]


def test_nothing_recorded_yet_is_unknown(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    assert "? Nothing to judge: no step is recorded yet." in said(open_page(run))
    assert "No step is recorded yet: " in said(open_page(run, TIMELINE))


def test_a_damaged_file_is_told_and_nothing_is_called_clean(
    tmp_path: Path, open_page: Open
) -> None:
    run = clean_run(tmp_path / "run")
    broken = next((run / "trace" / "checkpoints" / "rank=00000").glob("seg-*"))
    broken.write_bytes(b"")
    text = said(open_page(run))
    assert "? Unknown: no finding in 40 steps" in text
    assert f"checkpoints/rank=00000/{broken.name}" in text


@pytest.mark.parametrize("page", ["incidents", TIMELINE])
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("missing", "no run folder there"),
        ("empty", "this folder is empty"),
        ("foreign", "no guard recorded here"),
        ("damaged", "run.json cannot be read"),
        ("newer", "format 99"),
    ],
)
def test_no_run_is_one_line_and_the_page_recovers(
    tmp_path: Path, open_page: Open, page: str, state: str, expected: str
) -> None:
    run = tmp_path / "run"
    if state != "missing":
        run.mkdir()
    if state == "foreign":
        (run / "model.pt").touch()
    if state == "damaged":
        (run / "run.json").write_text('{"format":')
    if state == "newer":
        content = json.loads((make_run(run) / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(content | {"format": 99}))
    app = open_page(run, page)
    (error,) = app.error
    assert expected in error.value.replace("\\", "")
    assert "\n" not in error.value
    assert "this page looks again by itself" in said(app)
    corrupt_run(run)
    app.run()
    assert "27" in said(app)
    assert expected not in said(app)


def test_an_argument_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py"])
    app = AppTest.from_file(str(MAIN), default_timeout=30).run()
    assert "the dashboard shows runs: none given" in said(app)


def test_the_incident_of_the_address_is_shown(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.steps(1, 9)
        trace.alert(3, "suspect", text="odd")
        trace.incident(4, 1, 3, proven=False, closed=4)
        trace.alert(6, text="changed", index=1)
        trace.incident(6, 2, 6, proven=True)
    assert "Alerts of the incident opened at step 6" in said(open_page(run))  # the proven one
    assert "opened at step 3" in said(open_page(run, incident="3"))
    assert "opened at step 6" in said(open_page(run, incident="no such"))


def test_a_link_about_another_run_is_told(tmp_path: Path, open_page: Open) -> None:
    run = clean_run(tmp_path / "run")
    assert "The link is about the run other; shown is run." in said(open_page(run, run="other"))
    app = open_page(run)
    assert not app.warning
    assert app.query_params["run"] == "run"


def test_results_of_bisection_are_shown(tmp_path: Path, open_page: Open) -> None:
    run = clean_run(tmp_path / "run")
    result = Result("verify", 26, 27, exact=True, proven=True, kind="gradient", rank=0).as_dict()
    tensor = {"name": "w", "index": 5, "bits": [19], "before": "0x1", "after": "0x2"}
    Session.new(run).finish(result | {"tensors": [tensor]})
    Session.new(run).finish({})
    text = said(open_page(run))
    assert "✖ Corrupt" in text
    assert "Session 0001: Step 27 is the first that differs (proven); class: gradient" in text
    assert "Session 0002: its result.json cannot be read." in text
    assert "Band (26, 27]: found by sdc-bisect session 0001." in said(open_page(run, TIMELINE))


def test_names_from_the_run_are_not_read_as_markdown(tmp_path: Path, open_page: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    evil = "![x](http://example.com/x.png) <b> $a$ :red[r] [27]"
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace(json.dumps(NAMES[1]), json.dumps(evil)))
    app = open_page(run)
    assert evil in said(app)
    assert not any("](http" in str(table.value.to_dict()) for table in app.table)


def test_timeline_of_a_corrupt_run(tmp_path: Path, open_page: Open) -> None:
    app = open_page(corrupt_run(tmp_path / "run"), TIMELINE)
    text = said(app)
    assert "Band (20, 40]: last clean to first suspect or corrupt checkpoint." in text
    assert "▲ suspect" in text
    assert "10.1 MB" in text
    assert len(app.get("vega_lite_chart")) == 3


def test_a_deep_link_selects_the_step_and_the_layer(tmp_path: Path, open_page: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    app = open_page(run, TIMELINE, step="27", layer=NAMES[1])
    text = said(app)
    assert app.number_input[0].value == 27
    assert "Step 27" in [element.value for element in app.subheader]
    facts = {k: str(v).replace("\\", "") for k, v in app.table[0].value.iloc[0].items()}
    assert (facts["loss"], facts["gradient norm"]) == ("1.03704", "0.5")
    assert (facts["duration (s)"], facts["tokens"]) == ("0.25", "1024")
    assert len(app.get("vega_lite_chart")) == 4
    assert "The broad violet line is the step." in text


@pytest.mark.parametrize(
    "query",
    [{"step": "abc"}, {"step": "-3"}, {"step": "9" * 30}, {"layer": "no such"}, {"step": ""}],
)
def test_an_address_that_makes_no_sense_is_left_out(
    tmp_path: Path, open_page: Open, query: dict[str, str]
) -> None:
    app = open_page(clean_run(tmp_path / "run"), TIMELINE, **query)
    assert "Checkpoints" in said(app)
    assert app.number_input[0].value is None


def test_a_step_that_is_not_recorded_is_told(tmp_path: Path, open_page: Open) -> None:
    app = open_page(clean_run(tmp_path / "run"), TIMELINE, step="999")
    assert "Step 999 is not recorded; recorded is 1 to 40." in said(app)
    app.segmented_control[0].set_value("± 50 steps").run()
    assert "Step 999 is not recorded" in said(app)


def test_values_that_are_no_numbers_are_counted(tmp_path: Path, open_page: Open) -> None:
    run = clean_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.row("steps", 41, loss=float("nan"), grad_norm=float("inf"))
        trace.row("steps", 42, loss=float("nan"), grad_norm=0.0)
    text = said(open_page(run, TIMELINE))
    assert "training loss: 2 values NaN, the first at step 41" in text
    assert "gradient norm: 1 value infinite, the first at step 41" in text
    assert "gradient norm: 1 value zero or less, the first at step 42" in text


def test_news_is_shown_when_the_page_runs_again(tmp_path: Path, open_page: Open) -> None:
    run = clean_run(tmp_path / "run")
    app = open_page(run)
    assert "✔ Clean so far" in said(app)
    with Trace(run) as trace:
        trace.steps(41, 41)
        trace.alert(41, text="changed")
        trace.incident(41, 1, 41, proven=True)
    app.run()
    assert "✖ Corrupt" in said(app)
    assert "newest step 41" in said(app)


def test_a_page_that_is_refreshed_many_times_keeps_one_reader(
    tmp_path: Path, open_page: Open
) -> None:
    run = clean_run(tmp_path / "run")
    app = open_page(run, TIMELINE).run()
    kept = len(repr(app.session_state))
    for step in range(41, 46):
        with Trace(run) as trace:
            trace.steps(step, step)
        app.run()
    assert f"newest step {step}" in said(app)
    gc.collect()
    readers = [x for x in gc.get_objects() if type(x) is RunReader and x.run == run]
    assert len(readers) == 1
    assert abs(len(repr(app.session_state)) - kept) < 10  # the number of the version shown


def metrics_of(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_the_numbers_at_the_top(tmp_path: Path, open_page: Open) -> None:
    run = corrupt_run(tmp_path / "run")
    assert metrics_of(open_page(run)) == {
        "First bad step": "27",
        "Last clean checkpoint": "20",
        "Newest step": "40",
        "State compared": "100 %",
    }
    assert metrics_of(open_page(clean_run(tmp_path / "clean"))) == {
        "First bad step": "none found",
        "Last clean checkpoint": "40",
        "Newest step": "40",
        "State compared": "100 %",
    }
    assert metrics_of(open_page(watched_run(tmp_path / "part")))["State compared"] == "50 %"
    assert metrics_of(open_page(make_run(tmp_path / "new"))) == {
        "First bad step": "none found",
        "Last clean checkpoint": "none",
        "Newest step": "–",
        "State compared": "none",
    }


def test_a_deleted_checkpoint_is_told_and_not_one_to_resume_from(
    tmp_path: Path, open_page: Open
) -> None:
    run = clean_run(tmp_path / "run")
    (run / "archive" / "step=000020").mkdir(parents=True)  # that of step 40 is gone
    app = open_page(run)
    assert metrics_of(app)["Last clean checkpoint"] == "20"
    assert "2 clean; 1 of them deleted since" in said(app)
    statuses = list(open_page(run, TIMELINE).dataframe[0].value["status"])
    assert statuses == ["– deleted (was clean)", "● clean"]


def test_links_to_the_next_pages_keep_what_is_looked_at(tmp_path: Path, open_page: Open) -> None:
    app = open_page(corrupt_run(tmp_path / "run"), incident="27")
    links = {link.proto.label: link.proto.query_string for link in app.get("page_link")}
    query = parse_qs(links["Step 27 on the timeline"])
    assert query == {"run": ["run"], "incident": ["27"], "step": ["27"], "layer": [NAMES[1]]}
    assert not open_page(clean_run(tmp_path / "clean")).get("page_link")


def test_news_does_not_change_what_is_looked_at(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.steps(1, 9)
        for number, opened in enumerate((3, 6), 1):
            trace.alert(opened, "suspect", text="odd")
            trace.incident(opened, number, opened, proven=False, closed=opened)
    first = open_page(run, incident="6")
    timeline = open_page(run, TIMELINE, step="6")
    with Trace(run) as trace:
        trace.steps(10, 12)
        trace.alert(11, text="changed", index=1)
        trace.incident(11, 3, 11, proven=True)
    first.run()
    assert len(first.dataframe[0].value) == 3
    assert "opened at step 6" in said(first)  # though there is a proven one now
    timeline.run()
    assert timeline.number_input[0].value == 6
    assert "newest step 12" in said(timeline)
