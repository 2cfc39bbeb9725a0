"""Several runs in one dashboard: the table of them, the picker, and links about one of them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from hand_made import Trace, clean_run, corrupt_run, make_run
from paged import MAIN, page_of, said
from streamlit.testing.v1 import AppTest

from app.fleet import Run, runs_given
from app.fleet_table import age, table
from app.records import Newest
from app.summary import Summaries, Summary

Open = Callable[..., AppTest]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of a clean, a corrupt and a damaged run, and one without a step."""
    top = tmp_path / "runs"
    clean_run(top / "a-clean")
    corrupt_run(top / "b-corrupt")
    make_run(top / "c-started")
    make_run(top / "d-damaged")
    (top / "d-damaged" / "run.json").write_text("{")
    return top


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, runs: Path) -> Open:
    return lambda **query: page_of(monkeypatch, "incidents", runs, **query)


def test_the_table_has_the_state_of_each_run(open_page: Open) -> None:
    shown = open_page().dataframe[0].value
    assert list(shown["run"]) == ["a-clean", "b-corrupt", "c-started", "d-damaged"]
    assert list(shown["state"]) == ["✔ clean", "✖ corrupt", "? unknown", "? unknown"]
    assert list(shown["first bad step"]) == ["–", "27", "–", "–"]
    assert list(shown["newest step"]) == ["40", "40", "–", "–"]
    assert "run.json cannot be read" in shown["what is known"].iloc[3]
    assert shown["what is known"].iloc[2] == "Nothing to judge: no step is recorded yet."


def test_a_link_chooses_the_run_and_the_picker_another(open_page: Open) -> None:
    tested = open_page(run="b-corrupt", incident="27")
    assert "✖ Corrupt" in said(tested)
    assert tested.selectbox[0].value == "b-corrupt"
    tested.selectbox[0].select("a-clean").run()
    assert "✔ Clean so far" in said(tested)
    assert tested.query_params["run"] in ("a-clean", ["a-clean"])
    assert "incident" not in tested.query_params  # it was of the other run


def test_what_was_selected_in_one_run_is_not_in_the_next(open_page: Open) -> None:
    tested = open_page(run="b-corrupt")
    tested.switch_page("views/timeline.py").run()
    tested.number_input[0].set_value(27).run()
    assert tested.selectbox[0].value == "b-corrupt"  # a page's link alone keeps the run
    tested.selectbox[0].select("a-clean").run()
    assert tested.number_input[0].value is None
    assert "step" not in tested.query_params


@pytest.mark.parametrize("asked", ["no-such", "../outside", "/etc"])
def test_an_unknown_run_is_told_and_what_there_is_listed(open_page: Open, asked: str) -> None:
    tested = open_page(run=asked)
    assert f"there is no run {asked} here; there are 4 runs:" in said(tested)
    labels = [link.proto.label.replace("\\", "") for link in tested.get("page_link")]
    assert labels == ["a-clean", "b-corrupt", "c-started", "d-damaged"]
    assert not tested.dataframe


def test_a_damaged_run_is_a_line_and_the_others_stay_within_reach(open_page: Open) -> None:
    tested = open_page(run="d-damaged")
    assert "run.json cannot be read" in said(tested)
    assert len(tested.dataframe[0].value) == 4
    tested.selectbox[0].select("b-corrupt").run()
    assert "✖ Corrupt" in said(tested)


def test_what_is_refused_is_a_line_on_the_page(open_page: Open, runs: Path) -> None:
    outside = corrupt_run(runs.parent / "outside")
    (runs / "link").symlink_to(outside)
    tested = open_page()
    assert "link is not shown: it is a link that leads out of" in said(tested)
    assert "link" not in list(tested.dataframe[0].value["run"])


def test_a_run_that_is_deleted_while_it_is_looked_at(open_page: Open, runs: Path) -> None:
    tested = open_page(run="b-corrupt")
    shutil.rmtree(runs / "b-corrupt")
    tested.run()
    assert "no run folder there" in said(tested)
    assert len(tested.error) == 1


def test_reading_stops_at_its_time_and_goes_on_where_it_stopped(runs: Path) -> None:
    now = iter(range(1000))
    known = Summaries(clock=lambda: float(next(now)))
    fleet = runs_given([str(runs)]).runs
    seen = []
    for _ in range(3):
        found = known.of(fleet, seconds=2.0)
        seen.append([None if x is None else x.state for x in found])
    assert seen == [
        ["clean", "corrupt", None, None],
        ["clean", "corrupt", "unknown", "unknown"],
        ["clean", "corrupt", "unknown", "unknown"],
    ]


def test_a_run_is_read_again_only_when_it_has_news(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app import summary

    read: list[str] = []

    def noted(source: summary.Source) -> Summary:
        read.append(source.run.name)
        return original(source)

    original = summary._read
    monkeypatch.setattr(summary, "_read", noted)
    known, fleet = Summaries(), runs_given([str(runs)]).runs
    known.of(fleet, 60)
    assert len(read) == 4
    known.of(fleet, 60)
    assert len(read) == 4
    with Trace(runs / "a-clean") as trace:
        trace.steps(41, 41)
        trace.alert(41, text="changed")
        trace.incident(41, 1, 41, proven=True)
    found = known.of(fleet, 60)
    assert read[4:] == ["a-clean"]
    assert found[0] is not None
    assert (found[0].state, found[0].first_bad) == ("corrupt", 41)


def test_the_age_of_the_newest_step_in_words() -> None:
    assert age(Newest(5, 100.0, 1.0, ended=True), 220.0) == "2 min ago, ended"
    assert age(Newest(5, 100.0, 1.0), 130.0) == "30 s ago, recording"
    assert age(Newest(5, 100.0, 1.0), 220.0) == "2 min ago, ended, or stalled"
    assert age(Newest(5, 100.0, 60.0), 220.0) == "2 min ago, recording"
    assert age(Newest(5, None, None), 220.0) == "–"


def test_a_run_that_was_not_read_yet_has_a_row() -> None:
    columns = table([Run("a", "/a")], [None], time.time())
    assert {name: column[0] for name, column in columns.items()} == {
        "state": "… not read",
        "run": "a",
        "first bad step": "–",
        "newest step": "–",
        "recorded": "–",
        "what is known": "",
    }


def test_runs_may_come_into_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "later"
    top.mkdir()
    monkeypatch.setattr(sys, "argv", ["main.py", str(top)])
    tested = AppTest.from_file(str(MAIN), default_timeout=30).run()
    assert "this folder is empty" in said(tested)
    corrupt_run(top / "one")
    clean_run(top / "two")
    st.cache_data.clear()  # as after ten seconds
    tested.run()
    assert "✖ Corrupt" in said(tested)
    assert tested.selectbox[0].options == ["one", "two"]
