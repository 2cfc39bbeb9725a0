"""Results of bisect sessions, also damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.sessions import newest_bracket, session_results, verdict_on
from forensics.journal import Session
from forensics.result import Result

LOCATED: dict[str, Any] = Result(
    command="verify", last_clean=26, first_corrupt=27, exact=True, proven=True, kind="state at rest"
).as_dict()
BRACKET: dict[str, Any] = Result(
    command="run", last_clean=20, first_corrupt=40, exact=False, proven=False, skipped=(30,)
).as_dict()


def finish(run: Path, content: dict[str, Any]) -> None:
    Session.new(run).finish(content)


def test_no_session(tmp_path: Path) -> None:
    assert session_results(tmp_path, 1) == []
    Session.new(tmp_path)  # begun and not finished
    assert session_results(tmp_path, 1) == []
    assert newest_bracket([]) is None


def test_results_in_order(tmp_path: Path) -> None:
    tensor = {"name": "w", "index": 3, "bits": [19], "before": "0x1", "after": "0x2"}
    finish(tmp_path, BRACKET)
    finish(tmp_path, LOCATED | {"tensors": [tensor]})
    first, second = session_results(tmp_path, 1)
    assert (first.last_clean, first.first_corrupt, first.proven) == (20, 40, False)
    assert "(20, 40]" in first.sentence
    assert (second.last_clean, second.first_corrupt, second.proven) == (26, 27, True)
    assert "Step 27 is the first that differs (proven)" in second.sentence
    assert second.tensors == (tensor,)
    assert newest_bracket([first, second]) == second


def test_a_result_with_only_the_promised_keys_is_read(tmp_path: Path) -> None:
    keys = ("last_clean", "first_corrupt", "exact", "tensors", "class", "rank")
    finish(tmp_path, {key: LOCATED[key] for key in keys})
    (found,) = session_results(tmp_path, 1)
    assert (found.last_clean, found.first_corrupt, found.accuses) == (26, 27, True)
    assert not found.proven  # what is not said is not claimed


def test_a_result_of_an_earlier_attempt_accuses_nobody(tmp_path: Path) -> None:
    finish(tmp_path, LOCATED | {"attempts": 1})
    (then,), (now,) = session_results(tmp_path, 1), session_results(tmp_path, 2)
    assert then.accuses
    assert not now.accuses
    assert newest_bracket([now]) is None


def test_the_verdict_of_a_replay_belongs_to_the_incident_of_its_step(tmp_path: Path) -> None:
    finish(tmp_path, LOCATED | {"verdict": "undetermined", "attempts": 1})
    finish(tmp_path, LOCATED | {"verdict": "intermittent", "attempts": 1})
    finish(tmp_path, BRACKET | {"verdict": "undetermined", "first_corrupt": 27})
    found = session_results(tmp_path, 1)
    assert [result.verdict for result in found] == ["undetermined", "intermittent", None]
    result = verdict_on(found, 27)
    assert result is not None
    assert (result.session, result.verdict) == ("0002", "intermittent")
    assert verdict_on(found, 26) is None
    assert verdict_on(session_results(tmp_path, 2), 27) is None  # of another attempt


def test_a_result_has_its_date(tmp_path: Path) -> None:
    Session.new(tmp_path).finish(LOCATED, at=1e9)
    Session.new(tmp_path).finish(LOCATED)
    old = tmp_path / "bisect" / "0003"
    old.mkdir()
    (old / "result.json").write_text(json.dumps(LOCATED))  # before results were dated
    dates = [result.finished for result in session_results(tmp_path, 1)]
    assert dates[0] == 1e9
    assert dates[1] is not None
    assert dates[1] > 1.7e9
    assert dates[2] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(LOCATED)[:40],
        "[1, 2]",
        "null",
        json.dumps({"last_clean": 1}),
        json.dumps(LOCATED | {"first_corrupt": "27"}),
        json.dumps(LOCATED | {"tensors": 5}),
        json.dumps(LOCATED | {"tensors": [1]}),
        json.dumps(LOCATED | {"schema": None}),
        json.dumps(BRACKET | {"skipped": 4}),
        "\x00\x01",
    ],
)
def test_a_damaged_result_is_told_and_accuses_nobody(tmp_path: Path, text: str) -> None:
    finish(tmp_path, LOCATED)
    (tmp_path / "bisect" / "0001" / "result.json").write_text(text)
    finish(tmp_path, BRACKET)
    broken, sound = session_results(tmp_path, 1)
    assert not broken.readable
    assert not broken.accuses
    assert newest_bracket([broken, sound]) == sound
    assert newest_bracket([broken]) is None
