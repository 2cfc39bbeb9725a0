"""Sessions of a run that a guard recorded: by the trace, by hand, and for `verify`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forensics.cli import main
from forensics.index import index
from forensics.sessions.open_bracket import open_bracket


def call(*arguments: object) -> Result:
    done = CliRunner().invoke(main, [str(part) for part in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def run(faulty_run: Path, tmp_path: Path) -> Path:
    """A copy with the times of its files, which tell whether they have changed."""
    copied = shutil.copytree(faulty_run, tmp_path / "run")
    shutil.rmtree(copied / "bisect", ignore_errors=True)
    return Path(copied)


def test_what_the_trace_judged_is_proven_until_a_user_has_a_say(run: Path) -> None:
    call("start", run)
    by_trace = call("run", run, "--json")
    assert by_trace.exit_code == 1
    result = json.loads(by_trace.stdout)
    assert (result["last_clean"], result["first_corrupt"]) == (20, 30)
    assert (result["proven"], result["claim"]) == (True, "first")
    folder = run / "bisect" / "0001"
    stored = json.loads((folder / "result.json").read_text())
    assert (stored["attempts"], stored["attempt"]) == (1, None)
    assert {key: stored[key] for key in result} == result
    # every manifest stands for its bytes
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    marks = [line["mark"]["content"] for line in lines if line["event"] == "probe"]
    assert marks
    assert all(mark.startswith("manifest xxh3_128:") for mark in marks)
    # the same of what is kept, without judging
    assert json.loads(call("status", run, "--json").stdout)["result"] == result
    call("bad", run, 30)
    again = json.loads(call("status", run, "--json").stdout)["result"]
    assert (again["first_corrupt"], again["proven"]) == (30, False)


def test_files_that_were_written_again_under_a_manifest_are_judged_anew(run: Path) -> None:
    call("start", run)
    call("run", run)
    (changed,) = [one.path for one in index(run) if one.step == 20]
    for file in changed.iterdir():
        os.utime(file)
    again = call("run", run, "--json")
    assert "step 20 changed since it was judged (clean, by trace)" in again.stderr
    assert json.loads(again.stdout)["proven"] is True


def test_verify_takes_the_bracket_of_the_open_session(run: Path) -> None:
    found = index(run)
    assert open_bracket(run, found, None) is None
    call("start", run)
    call("bad", run, 40)
    assert open_bracket(run, found, None) is None  # one end is not enough
    call("good", run, 10)
    bracket = open_bracket(run, found, None)
    assert bracket is not None
    assert (bracket.last_clean, bracket.first_corrupt, bracket.exact) == (10, 40, False)
    assert "step 20 is next" in bracket.evidence[0]
    assert open_bracket(run, found, 1) is None  # of another attempt
    verified = call("verify", run, "--recorded", "--json")
    assert "the open session's bracket: (10, 40]" in verified.stderr
    assert "steps 11 to 40" in verified.stderr
    assert json.loads(verified.stdout)["first_corrupt"] == 27


def test_verify_takes_the_session_that_is_named(run: Path, tmp_path: Path) -> None:
    named = ("--session", tmp_path / "elsewhere")
    call("start", run, *named)
    call("bad", run, 40, *named)
    call("good", run, 20, *named)
    verified = call("verify", run, "--recorded", "--json", *named)
    assert "the open session's bracket: (20, 40]" in verified.stderr
    assert json.loads(verified.stdout)["first_corrupt"] == 27
    assert not (run / "bisect").exists()
    assert (tmp_path / "elsewhere" / "0002" / "result.json").is_file()
    call("reset", run, *named)
    call("run", run, *named)
    found = call("verify", run, *named, "--", "sh", "-c", "exit 9 # {ckpt}")
    assert "the bracket that run found: (20, 30]" in found.stderr
