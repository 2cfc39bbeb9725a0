"""The address says what is looked at: it outlives pages and late looks for news, and no run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hand_made import NAMES, corrupt_run
from paged import page_of, said
from streamlit.testing.v1 import AppTest

import app.address


def query(app: AppTest) -> dict[str, str]:
    asked = {name: app.query_params[name] for name in app.query_params}
    return {name: text if isinstance(text, str) else text[0] for name, text in asked.items()}


def ask(app: AppTest, **asked: str) -> AppTest:
    """Run the page as a browser does that has this address."""
    for name in list(app.query_params):
        del app.query_params[name]
    for name, value in asked.items():
        app.query_params[name] = value
    return app.run()


def test_the_navigation_bar_keeps_what_is_looked_at_and_a_link_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = corrupt_run(tmp_path / "run")
    shown = page_of(monkeypatch, "timeline", run, step="27", layer=NAMES[1])
    assert shown.number_input(key="step").value == 27
    ask(shown.switch_page("views/locate.py"))
    assert query(shown) == {"run": "run", "step": "27", "layer": NAMES[1]}
    assert f"{NAMES[1]} at step 27" in said(shown)
    ask(shown.switch_page("views/timeline.py"), run="run", step="3")
    assert query(shown) == {"run": "run", "step": "3"}
    assert shown.selectbox(key="layer").value is None


def test_a_late_look_for_news_does_not_undo_a_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [100.0]
    monkeypatch.setattr(app.address, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = page_of(monkeypatch, "timeline", corrupt_run(tmp_path / "run"), step="27")
    shown.number_input(key="step").set_value(3).run()
    assert query(shown) == {"run": "run", "step": "3"}
    ask(shown, run="run", step="27")  # it was on its way before the browser heard of the 3
    assert shown.number_input(key="step").value == 3
    assert query(shown) == {"run": "run", "step": "3"}
    now[0] += 60
    ask(shown, run="run", step="27")
    assert shown.number_input(key="step").value == 27


@pytest.mark.parametrize("step", ["-1", "x", "1e3", "9" * 30, ""])
def test_what_is_no_step_or_layer_here_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    run = corrupt_run(tmp_path / "run")
    shown = page_of(monkeypatch, "timeline", run, step=step, layer="no such")
    said(shown)
    assert shown.number_input(key="step").value is None
    layer = shown.selectbox(key="layer")
    assert layer.value is None
    assert layer.proto.placeholder == "no such is not in this run"


def test_what_is_usual_is_left_out_of_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = page_of(monkeypatch, "locate", corrupt_run(tmp_path / "run"))
    assert query(shown) == {"run": "run"}
    shown.selectbox(key="statistic").set_value("max_abs").run()
    assert query(shown) == {"run": "run", "statistic": "max_abs"}
    shown.selectbox(key="statistic").set_value("norm").run()
    assert query(shown) == {"run": "run"}
