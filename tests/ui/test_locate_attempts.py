"""The page Locate of a run that was started more than once: which start it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hand_made import NAMES, Trace, corrupt_run, make_run
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from app.locating.attempt_choice import default
from app.locating.scans import Scans
from app.locating.statistics_sql import STATISTICS
from sdc_guard import RunReader

Open = Callable[..., AppTest]
CELL = {"step": "30", "layer": NAMES[1]}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 to 40 with an incident at 27; from 20 on again, on another host, with one at 33.

    The norm of layer 1 is 1 at first and 2 in the steps that were run again.
    """
    run = make_run(tmp_path_factory.mktemp("resumed") / "run", starts=(1, 20))
    for attempt, (first, last, norm, alert) in enumerate(((1, 40, 1.0, 27), (20, 45, 2.0, 33)), 1):
        with Trace(run, attempt=attempt) as trace:
            trace.start(first, f"node-{attempt}")
            for step in range(first, last + 1):
                trace.row("steps", step, time=1e9 + step, loss=1.0)
                for layer in (0, 1):
                    trace.row(
                        "layers", step, layer=layer, norm=norm + step / 1e6, max_abs=norm,
                        mean_abs=norm, nonfinite=0, zeros=0, scope="local",
                    )  # fmt: skip
            trace.alert(alert, text=f"param changed in attempt {attempt}", kind="param")
            trace.incident(alert, 1, alert, proven=True)
    return run


@pytest.fixture
def open_locate(monkeypatch: pytest.MonkeyPatch) -> Open:
    return lambda run, **query: page_of(monkeypatch, "locate", run, **query)


def norm_and_host(app: AppTest) -> tuple[float, str]:
    table = app.table[0].value
    norm, host = (str(table[name][0]).replace("\\", "") for name in ("norm", "host"))
    return round(float(norm), 1), host


@pytest.mark.parametrize(
    ("query", "attempt"),
    [
        ({}, 2),
        ({"attempt": "1"}, 1),
        ({"attempt": "2"}, 2),
        ({"incident": "27"}, 1),  # which the newest attempt began before
        ({"incident": "33"}, 2),
        ({"incident": "27", "attempt": "2"}, 2),
        ({"incident": "no such"}, 2),
        ({"attempt": "7"}, 2),
    ],
)
def test_a_deep_link_shows_its_attempt_and_without_one_that_of_the_incident(
    resumed: Path, open_locate: Open, query: dict[str, str], attempt: int
) -> None:
    app = open_locate(resumed, **CELL, **query)
    text = said(app)
    assert app.selectbox(key="attempt").value == str(attempt)
    assert norm_and_host(app) == (float(attempt), f"node-{attempt}")
    assert f"step {(27, 33)[attempt - 1]}" in text
    assert f"param changed in attempt {3 - attempt}" not in text
    if attempt == 1:
        assert "Shown: steps from 1 on of attempt 1." in text
        assert "A later attempt began again at step 20: that is not shown here." in text
    else:
        assert "Shown: steps 1 to 19 of attempt 1, steps from 20 on of attempt 2." in text
    assert ("There is no attempt 7 in this run." in text) == (query.get("attempt") == "7")


def test_a_choice_goes_into_the_address_and_the_default_out_of_it(
    resumed: Path, open_locate: Open
) -> None:
    app = open_locate(resumed, **CELL)
    app.selectbox(key="attempt").set_value("1").run()
    assert app.query_params["attempt"] in ("1", ["1"])
    assert norm_and_host(app)[0] == 1.0
    app.selectbox(key="attempt").set_value("2").run()
    assert "attempt" not in app.query_params
    assert norm_and_host(app)[0] == 2.0


def test_all_of_the_page_is_of_the_attempt_that_is_shown(resumed: Path, open_locate: Open) -> None:
    app = open_locate(resumed)
    newest = said(app)
    first = said(app.selectbox(key="attempt").set_value("1").run())
    assert "Selected: 33 to 42; baseline: 1 to 32" in newest
    assert "Selected: 27 to 36; baseline: 1 to 26" in first


def test_what_is_kept_for_heatmaps_is_of_one_attempt(resumed: Path) -> None:
    kept = Scans()
    with RunReader(resumed) as newest, RunReader(resumed, attempt=1) as first:
        ends = []
        for reader in (newest, first, newest):
            answer = kept.of(reader, 1, STATISTICS["norm"], rows=1)
            assert answer is not None
            assert answer.value is not None
            ends.append(answer.value.extent.last)
    assert ends == [45, 40, 45]


def test_what_is_recorded_is_kept_for_each_attempt(
    resumed: Path, tmp_path: Path, open_locate: Open
) -> None:
    app = open_locate(resumed, **CELL)
    assert "the run has grown" not in said(app.selectbox(key="attempt").set_value("1").run())
    again = make_run(tmp_path / "again", starts=(1, 1))
    with Trace(again) as trace:
        trace.steps(1, 20)
    app = open_locate(again)
    assert "No statistics of layers are recorded" in said(app)
    app.selectbox(key="attempt").set_value("1").run()
    assert "No statistics of layers are recorded" not in said(app)


def test_a_host_whose_name_is_no_text_is_shown_by_its_escape(
    tmp_path: Path, open_locate: Open
) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.start(1, "n\udcff")
        trace.steps(1, 20)
    table = open_locate(run, step="9", layer=NAMES[1]).table[0].value
    assert table["host"][0] == r"n\\udcff"  # as Markdown: a backslash stands before each


def test_one_attempt_needs_no_choice(tmp_path: Path, open_locate: Open) -> None:
    app = open_locate(corrupt_run(tmp_path / "run"), step="27", layer=NAMES[1], attempt="3")
    assert "attempt" not in [one.key for one in app.selectbox]
    assert "Shown:" not in said(app)


@pytest.mark.parametrize("key", ["", "x", "27.x", "-27", "27.0.0", "9" * 30, "27.1", "٢٧"])
def test_what_is_no_incident_leaves_the_newest(resumed: Path, key: str) -> None:
    with RunReader(resumed) as reader:
        assert default(reader, key) == 2
        assert default(reader, "27") == 1
