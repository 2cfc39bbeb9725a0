"""What pages wait for while it is loaded apart."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hand_made import clean_run
from paged import page_of, said

from app import loading
from app.loading import Loading


def test_nobody_waits_where_nothing_is_loaded_apart() -> None:
    loaded: list[str] = []
    assert not Loading(["a"], loaded.append).is_awaited()
    assert loaded == []


def test_a_page_that_needs_it_begins_it_at_once_and_once() -> None:
    loaded: list[str] = []
    may_end, ended = threading.Event(), threading.Event()

    def load(name: str) -> None:
        assert may_end.wait(10)
        loaded.append(name)
        if name == "b":
            ended.set()

    found = Loading(["a", "b"], load)
    found.later(3600)
    assert found.is_awaited()
    assert found.is_awaited()
    assert not found.is_done
    may_end.set()
    assert ended.wait(10)
    assert found._done.wait(10)
    assert not found.is_awaited()
    assert loaded == ["a", "b"]


def test_it_begins_by_itself() -> None:
    loaded = threading.Event()
    Loading(["a"], lambda _: loaded.set()).later(0.01)
    assert loaded.wait(10)


def test_a_page_is_shown_also_where_it_cannot_be_loaded() -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    found = Loading(["a"], fail)
    found.later(3600)
    found.is_awaited()
    assert found._done.wait(10)
    assert not found.is_awaited()


def test_a_page_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    waiting = Loading(["a"], lambda _: may_end.wait(60))
    waiting.later(3600)
    monkeypatch.setattr(loading, "of_server", waiting)
    run = clean_run(tmp_path / "run")
    assert "Loading what reads checkpoints" in said(page_of(monkeypatch, "act", run))
    assert "No incident" not in said(page_of(monkeypatch, "bisect", run))
    assert "Clean so far" in said(page_of(monkeypatch, "incidents", run))
    may_end.set()
    assert waiting._done.wait(10)
    assert "No incident" in said(page_of(monkeypatch, "act", run))


def test_the_first_pages_take_no_torch() -> None:
    """Of this process others may have loaded it: the pages' own modules are asked."""
    code = (
        "import sys, app.frame, app.answers, app.charts, app.counts, app.fleet_table, app.overview,"
        " app.series, app.sessions, app.locating.cell_detail, app.locating.comparison,"
        " app.locating.heatmap, app.locating.locate_state; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
