"""What surrounds the pages: the run that is looked at, its state in a line, and news of it."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest
from hand_made import clean_run, corrupt_run
from paged import MAIN, page_of, said
from streamlit.testing.v1 import AppTest

import app.frame
import app.source
from app.fleet import Fleet, Run
from app.frame import recording
from app.records import Newest
from sdc_guard.store.trace_reader import TraceReader

SECONDS = 1_700_000_000.0


@pytest.mark.parametrize(
    ("newest", "later", "told"),
    [
        (Newest(1_005, SECONDS, 1.0), 5, "recording, newest step 1,005"),
        (Newest(5, SECONDS, 60.0), 290, "recording, newest step 5"),
        (Newest(5, SECONDS, 60.0), 310, "newest step 5, 5 min ago: ended, or stalled"),
        (Newest(5, SECONDS, 1.0), 61, "newest step 5, 61 s ago: ended, or stalled"),
        (Newest(5, SECONDS, 1.0, ended=True), 3, "newest step 5, 3 s ago: ended"),
        (Newest(5, None, None), 3, "newest step 5"),
        (Newest(5, None, None, ended=True), 3, "newest step 5: ended"),
    ],
)
def test_the_state_of_the_recording_in_words(newest: Newest, later: float, told: str) -> None:
    assert recording(newest, SECONDS + later) == told


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder of two runs."""
    clean_run(tmp_path / "runs" / "a")
    corrupt_run(tmp_path / "runs" / "b")
    return tmp_path / "runs"


def test_a_run_is_named_where_there_is_no_picker_that_names_it(
    monkeypatch: pytest.MonkeyPatch, two: Path
) -> None:
    assert "Run **b** · newest step 40" in said(page_of(monkeypatch, "timeline", two / "b"))
    assert "Run **b**" not in said(page_of(monkeypatch, "timeline", two, run="b"))


def test_an_address_that_lost_the_run_is_about_the_one_before(
    monkeypatch: pytest.MonkeyPatch, two: Path
) -> None:
    shown = page_of(monkeypatch, "timeline", two, run="b")
    del shown.query_params["run"]
    shown.run()
    assert shown.selectbox(key="run picker").value == "b"
    assert shown.query_params["run"] in ("b", ["b"])


@pytest.mark.parametrize(("live", "version"), [(True, 2), (False, 1)])
def test_news_runs_the_page_again_while_it_is_live(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, live: bool, version: int
) -> None:
    shown = page_of(monkeypatch, "timeline", clean_run(tmp_path / "run"))
    shown.toggle(key="live").set_value(live)
    asked: list[int] = []

    def published(_: app.source.Source) -> int:
        asked.append(1)
        return 1 if len(asked) == 1 else 2  # from the second look on

    monkeypatch.setattr(app.source.Source, "version", published)
    shown.run()
    assert shown.session_state["shown"] == version


def test_a_run_that_was_added_runs_the_page_again(
    monkeypatch: pytest.MonkeyPatch, two: Path
) -> None:
    shown = page_of(monkeypatch, "timeline", two, run="b")
    runs = app.source.given_runs().runs
    asked: list[int] = []

    def given() -> Fleet:
        asked.append(1)
        return Fleet(runs if len(asked) <= 2 else (*runs, Run("c", str(two / "c"))))

    monkeypatch.setattr(app.frame, "given_runs", given)
    shown.run()
    assert shown.session_state["runs shown"] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (duckdb.IOException("a [damaged](x) block\nmore"), "the trace cannot be read: a [damaged]"),
        (FileNotFoundError(2, "gone since", "seg-1"), "cannot be read (gone since: seg-1)"),
    ],
)
def test_what_goes_wrong_while_a_page_reads_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: Exception, told: str
) -> None:
    shown = page_of(monkeypatch, "timeline", clean_run(tmp_path / "run"))

    def fail(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(TraceReader, "rows", fail)
    (error,) = shown.run().error
    assert told in error.value.replace("\\", "")
    assert "](" not in error.value
    assert "\n" not in error.value
    assert "Waiting for the run" in said(shown)


def test_many_runs_are_listed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Fleet(tuple(Run(f"r{n}", f"/no/r{n}") for n in range(25)))
    monkeypatch.setattr(app.frame, "given_runs", lambda: many)
    monkeypatch.setattr(sys, "argv", ["main.py", "/no"])
    shown = AppTest.from_file(str(MAIN), default_timeout=60)
    shown.query_params["run"] = "x"
    shown.run()
    assert "there is no run x here; there are 25 runs:" in said(shown)
    assert [one.proto.label for one in shown.get("page_link")] == [f"r{n}" for n in range(20)]
    assert "and 5 more" in said(shown)
