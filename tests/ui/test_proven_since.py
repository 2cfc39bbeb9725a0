"""What a replay proved is what every page says, on recorded runs and by the real commands."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import preloaded
import pytest
from click.testing import CliRunner
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from app import queries
from app.convicted import since_saved
from forensics.cli import main
from sdc_guard import RunReader
from sdc_guard.archive.convictions import FILE

Open = Callable[..., AppTest]

ROOT = Path(__file__).resolve().parents[2]
# where the replay begins and ends: the checkpoint before the step of the truth, and one after
REPLAYS = {"bad_batch": ("80", "90"), "gradient_flip": ("60", "70")}


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of each run, searched and then replayed as it says itself."""
    folder = tmp_path_factory.mktemp("proven")
    python = Path(preloaded.python()).parent  # the recorded command begins with `python`
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{python}{os.pathsep}{os.environ['PATH']}")
        patch.chdir(ROOT)  # and is relative to this folder
        for name, (low, high) in REPLAYS.items():
            run = str(folder / name)
            shutil.copytree(ROOT / "sample_runs" / "recorded" / name, run)
            CliRunner().invoke(main, ["run", run])
            replay = ["verify", run, "--from", low, "--to", high, "--recorded"]
            done = CliRunner().invoke(main, replay)
            assert done.exit_code == 1, done.output
    return folder.joinpath


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    return lambda page, run, **query: page_of(monkeypatch, page, run, **query)


def cards(app: AppTest) -> dict[str, str]:
    return {card.label: card.value for card in app.metric}


def test_the_cards_say_what_restore_says(proven: Callable[[str], Path], open_page: Open) -> None:
    app = open_page("incidents", proven("bad_batch"))
    shown = cards(app)
    assert (shown["First bad step"], shown["Last clean checkpoint"]) == ("88", "80")
    text = said(app)
    assert "4 clean, 1 suspect; first trouble in (80, 100]" in text
    assert "1 checkpoint suspect by a proof, the first of step 100." in text
    # no memory and no arithmetic was wrong
    assert "a step was trained on another batch than its replay (data or software)" in text
    assert "an exact comparison found a change" not in text
    assert "differs with its batch: 36 tensors" in text
    act = cards(open_page("act", proven("bad_batch")))
    assert act["Go on from"] == "step 80"


def test_timeline_and_bisect_mark_what_was_convicted(
    proven: Callable[[str], Path], open_page: Open
) -> None:
    run = proven("bad_batch")
    table = open_page("timeline", run).dataframe[0].value
    status = dict(zip(table["step"], table["status"], strict=True))
    assert (status["80"], status["100"]) == ("● clean", "▲ suspect")
    assert "a replay proved step 88 wrong" in table["reason"][0]
    asked = open_page("bisect", run, session="0001").table[-2].value
    answers = dict(zip(asked["checkpoint"], asked["answer"], strict=True))
    assert answers["step 100"].endswith("▲ suspect by a proof")


@pytest.mark.parametrize(
    ("name", "step", "rank", "layer", "words"),
    [
        ("bad_batch", 88, 0, None, "step 88 was trained on rank 0 on another batch"),
        ("gradient_flip", 67, 1, "blocks.0.up.weight", "step 67 is the first corrupted step on"),
    ],
)
def test_locate_answers_by_the_replay(
    name: str, step: int, rank: int, layer: str | None, words: str,
    proven: Callable[[str], Path], open_page: Open,
) -> None:  # fmt: skip
    app = open_page("locate", proven(name))
    answer = app.error[0].value.replace("\\", "")
    assert words in answer
    assert "Proven by a replay: session 0002" in answer
    link = next(x.proto for x in app.get("page_link") if x.proto.label.startswith("Show this"))
    found = dict(re.findall(r"(step|rank|layer)=([^&]*)", link.query_string))
    wanted = {"step": str(step), "rank": str(rank), "layer": layer}
    assert found == {key: value for key, value in wanted.items() if value is not None}


def test_a_line_that_is_taken_back_convicts_no_more(
    proven: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(proven("bad_batch"), run)
    with RunReader(run) as reader:
        assert [x.step for x in queries.checkpoints(reader) if x.convicted] == [100]
        (run / "archive" / FILE).write_text("")
        kept = queries.checkpoints(reader)
    assert {x.status for x in kept} == {"clean"}
    assert since_saved(tmp_path / "nowhere", kept) == kept
