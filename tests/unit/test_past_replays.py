"""What a replay has shown by now is in the answers that come after it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reported import finished, report_on
from segment_writers import SegmentWriter
from traces import make_run, whole_steps, write

from forensics.checkpoint import Checkpoint
from forensics.cli import main
from forensics.commands.verify import verify_command
from forensics.missing import with_record
from forensics.past_replays import SAME_BITS, same_bits_by
from forensics.replay_hint import replay_command
from forensics.reporting.facts import Headline
from forensics.reporting.going_back import go_back
from forensics.result import Result
from forensics.wording import sentence
from sdc_guard import RunReader
from sdc_guard.archive.convictions import Conviction, add_conviction

NOTHING = Result("run", 10, None, exact=True, proven=False)


def searched(run: Path, result: Result = NOTHING) -> Result:
    with RunReader(run) as reader:
        return with_record(reader, result, [])


def convicted(run: Path, step: int = 7, clean: int | None = 6, attempt: int = 1) -> None:
    (run / "archive").mkdir(exist_ok=True)
    add_conviction(run / "archive", Conviction(attempt, clean, step, "batch", session="0002"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = make_run(tmp_path / "run")
    write(made, whole_steps(0, 12))
    return made


def test_a_proof_wins_over_a_later_search_of_bytes(run: Path) -> None:
    assert searched(run).exit_code == 0
    convicted(run)
    found = searched(run)
    assert (found.last_clean, found.first_corrupt, found.exit_code) == (6, 7, 1)
    told = sentence(found.as_dict())
    assert told.startswith("Step 7 is wrong, proven by session 0002: the fault lies in (6, 7].")
    assert "sdc-bisect verify" not in "".join(found.evidence)


def test_a_proof_within_a_range_is_a_range(run: Path) -> None:
    convicted(run, clean=4)
    assert searched(run).exit_code == 3


def test_what_a_search_found_itself_stands_where_it_agrees(run: Path) -> None:
    convicted(run)
    bracket = Result("run", 5, 10, exact=True, proven=True)
    assert searched(run, bracket).first_corrupt == 10
    late = Result("run", 9, 10, exact=True, proven=True)
    assert searched(run, late).first_corrupt == 7


def test_a_proof_that_was_taken_back_or_superseded_is_none(run: Path) -> None:
    convicted(run, attempt=9)
    assert searched(run).exit_code == 0
    (run / "archive" / "convictions.jsonl").write_text("")
    assert searched(run).exit_code == 0


def test_only_a_replay_of_all_suspected_steps_counts() -> None:
    sessions: list[tuple[str, dict[str, Any]]] = [
        ("0001", {"same_bits": {"after": 4, "until": 9}}),
        ("0002", {"same_bits": {"after": 8, "until": 9}}),
        ("0003", {}),
    ]
    assert same_bits_by(sessions, [5, 9]) == "0001"
    assert same_bits_by(sessions, [4, 9]) is None
    assert same_bits_by(sessions, [5, 10]) is None


def test_a_report_takes_in_that_the_same_bits_came_again(run: Path) -> None:
    evidence = json.dumps({"last_step": 8, "proven": False})
    SegmentWriter(run, "w1", attempt=1).write(
        "incidents", [8], incident=[1], opened=[8], closed=[None], verdict=["undetermined"],
        evidence=[evidence],
    )  # fmt: skip
    assert report_on(run).headline.state == "suspect"
    same = Result("verify", 12, None, exact=True, proven=True, same_bits={"after": 5, "until": 12})
    finished(run, same.as_dict())
    report = report_on(run)
    assert report.headline.state == "suspect"
    assert f"replayed by session 0001: {SAME_BITS}" in report.headline.sentence
    assert report.go_back.step is None
    assert not any("sdc-bisect verify" in command for command, _ in report.go_back.then)


def test_nobody_is_told_to_go_back_for_what_repeats() -> None:
    kept = [Checkpoint(5, Path("/a/5"), "torch", "clean", ())]
    suspected = Headline("suspect", "", first_corrupt=8, source="alerts")
    assert go_back(suspected, kept, "/r", None, 12).step == 5
    repeated = go_back(replace(suspected, repeated="session 0001"), kept, "/r", None, 12)
    assert (repeated.step, repeated.then) == (None, ())


@pytest.mark.parametrize("resume", [None, "python t.py --resume {ckpt}"])
@pytest.mark.parametrize("ends", [(), (50,), (50, 60)])
def test_a_hint_is_a_command_that_click_takes(
    tmp_path: Path, resume: str | None, ends: tuple[int, ...]
) -> None:
    place = tmp_path / "my run's"
    place.mkdir()
    program, name, *rest = shlex.split(replay_command(str(place), resume, *ends))
    assert (program, main.get_command(None, name)) == ("sdc-bisect", verify_command)  # type: ignore[arg-type]
    asked = verify_command.make_context("verify", rest).params
    assert (asked["run"], asked["recorded"]) == (place, resume is not None)
    assert [asked["start"], asked["until"]] == [*ends, None, None][:2]
    assert bool(asked["command"]) == (resume is None)
