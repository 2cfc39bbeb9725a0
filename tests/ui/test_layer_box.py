"""The box of layers of a model with more of them than a browser lists at once."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from hand_made import NAMES, corrupt_run
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from app import layer_box
from app.layer_box import matching
from sdc_guard.store.run_file import Layer, RunFile

ALERTED = NAMES[1]
OTHERS = [f"Decoder.{n}.attention.weight" for n in range(30)]
LISTED = 5


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run with 32 layers, of which the last is the one that alerts name, and 5 are listed."""
    monkeypatch.setattr(layer_box, "MOST_LISTED", LISTED)
    folder = corrupt_run(tmp_path / "run")
    recorded = RunFile.read(folder)
    first, alerted = recorded.layers
    more = [Layer(n, name, (), (4,), "float32", 4) for n, name in enumerate(OTHERS, 2)]
    dataclasses.replace(recorded, layers=(first, *more, alerted)).write(folder)
    return folder


def typed(app: AppTest, text: str) -> AppTest:
    """What somebody types into the box, and Enter."""
    box = app.selectbox(key="layer")
    if text not in box.options:
        box.options.append(text)  # as the browser does
    return box.set_value(text).run()


def asked_for(app: AppTest) -> str:
    """The layer that the address has."""
    text = app.query_params["layer"]
    return text if isinstance(text, str) else text[0]


def test_names_have_each_word_in_them() -> None:
    assert matching(OTHERS, "decoder.7 WEIGHT") == ["Decoder.7.attention.weight"]
    assert matching(OTHERS, "weight 2. decoder") == [
        name for name in OTHERS if "2." in name
    ]  # 2, 12 and 22
    assert matching(OTHERS, "bias") == []


@pytest.mark.parametrize("page", ["timeline", "locate"])
def test_the_list_has_the_alerted_ones_and_the_first_ones(
    monkeypatch: pytest.MonkeyPatch, run: Path, page: str
) -> None:
    shown = page_of(monkeypatch, page, run)
    assert shown.selectbox(key="layer").options == [ALERTED, NAMES[0], *OTHERS[:3]]
    assert shown.selectbox(key="layer").value is None
    linked = page_of(monkeypatch, page, run, layer=OTHERS[20])
    assert linked.selectbox(key="layer").value == OTHERS[20]
    assert linked.selectbox(key="layer").options == [OTHERS[20], ALERTED, NAMES[0], *OTHERS[:2]]


def test_a_layer_that_is_not_listed_is_found_by_a_part_of_its_name(
    monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    shown = typed(page_of(monkeypatch, "locate", run, step="21"), "decoder.17")
    assert asked_for(shown) == OTHERS[17]
    assert f"{OTHERS[17]} at step 21" in said(shown)


def test_of_several_the_box_lists_those_and_the_choice_stays(
    monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    shown = typed(page_of(monkeypatch, "timeline", run, layer=ALERTED), "attention 2.")
    box = shown.selectbox(key="layer")
    found = [OTHERS[2], OTHERS[12], OTHERS[22]]
    assert box.options == [ALERTED, *found]
    assert box.value == ALERTED
    assert asked_for(shown) == ALERTED
    assert "“attention 2.” is in the names of 3 layers: the box lists them." in said(shown)
    chosen = typed(shown, OTHERS[22])
    assert asked_for(chosen) == OTHERS[22]
    assert "is in the names" not in said(chosen)
    assert chosen.selectbox(key="layer").options[:2] == [OTHERS[22], ALERTED]


def test_of_many_or_none_it_says_so(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    shown = typed(page_of(monkeypatch, "timeline", run), "decoder")
    assert shown.selectbox(key="layer").options == OTHERS[:LISTED]
    assert "“decoder” is in the names of 30 layers: the box lists 5 of them." in said(shown)
    none = typed(shown, "*no such* layer")
    assert "No layer has “*no such* layer” in its name." in said(none)
    assert none.selectbox(key="layer").options == [ALERTED, NAMES[0], *OTHERS[:3]]
    assert "layer" not in none.query_params
    assert f"No layer has “{'x' * 60}…” in its name." in said(typed(none, "x" * 10_000))
    assert "in its name" not in said(typed(none, "  "))


def test_a_search_is_of_the_run_it_was_made_in(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    shutil.copytree(run, run.with_name("second"))
    shown = typed(page_of(monkeypatch, "timeline", run.parent, run="run"), "decoder")
    assert "is in the names of" in said(shown)
    other = shown.selectbox(key="run picker").select("second").run()
    assert "is in the names of" not in said(other)
    assert other.selectbox(key="layer").options == [ALERTED, NAMES[0], *OTHERS[:3]]


def test_few_layers_are_all_listed_and_nothing_else_can_be_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    box = page_of(monkeypatch, "timeline", corrupt_run(tmp_path / "few")).selectbox(key="layer")
    assert box.options == list(NAMES)
    assert not box.proto.accept_new_options
