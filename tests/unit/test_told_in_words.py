"""Every input is answered in one line that says what is wrong, in words that print."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from session_archives import call, made, one_line

from forensics.checkpoint import Checkpoint
from forensics.index_text import index_lines
from forensics.passed_over import passed_over
from forensics.readers.step_of import _KEYS
from forensics.reservations import of_suspects
from forensics.sessions.log_text import read_log
from forensics.wording import sentence
from sdc_guard.archive.manifest import SCHEMA, Manifest
from sdc_guard.cli import main as sdc_guard
from sdc_guard.errors import CheckpointUnreadable, UsageError
from sdc_guard.shown import shown

PYTHONS = ("Error", "Expecting", "NoneType", "invalid literal", "argument", "object is not", "str")


@contextmanager
def no_waiting(seconds: int = 20) -> Iterator[None]:
    """Whoever waits for a pipe is woken, and the test fails."""

    def wake(*_: object) -> None:
        pytest.fail("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("typed", "schema", "what"),
    [
        (["run", "--json"], "sdc-bisect.run", "missing argument"),
        (["scan", "--json", "x", "--frob"], "sdc-bisect.scan", "no such option"),
        (["run", "x", "--oracle", "nix", "--json"], "sdc-bisect.run", "'nix' is not one of"),
        (["start", "x", "--good", "abc", "--json"], "sdc-bisect.start", "not a valid integer"),
        (["frob", "--json"], "sdc-bisect", "no such command"),
    ],
)
def test_what_is_typed_wrong_is_one_object_or_one_line(
    typed: list[str], schema: str, what: str
) -> None:
    answer = call(*typed)
    assert answer.code == 2
    assert answer.json["schema"] == {"name": schema, "version": 1}
    assert set(answer.json["error"]) == {"what", "where", "next"}
    assert what in answer.json["error"]["what"]
    plain = call(*[word for word in typed if word != "--json"])
    one_line(plain, 2, what, "--help")
    assert len(plain.err.splitlines()) == 1


def test_json_after_the_dashes_is_the_users_commands(tmp_path: Path) -> None:
    one_line(call("run", "--frob", tmp_path, "--", "check", "--json"), 2, "no such option")


def test_sdc_guard_says_it_alike() -> None:
    done = CliRunner().invoke(sdc_guard, ["check-log", "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["schema"]["name"] == "sdc-guard.check-log"


@pytest.mark.parametrize("command", ["index", "scan", "run", "seal", "doctor", "start"])
def test_one_rule_for_what_is_missing_and_what_is_empty(command: str, tmp_path: Path) -> None:
    one_line(call(command, tmp_path / "nowhere"), 2, "nowhere")
    (tmp_path / "empty").mkdir()
    one_line(call(command, tmp_path / "empty"), 5, "no checkpoint there: an empty folder")
    os.mkfifo(tmp_path / "step-1.pt")
    with no_waiting():
        one_line(call(command, tmp_path / "step-1.pt"), 5, "no checkpoint there: a pipe")
        one_line(call(command, tmp_path), 5, "passed over: 1 empty folder (empty), 1 pipe")
    (tmp_path / "link.pt").symlink_to("nothing")
    one_line(call(command, tmp_path / "link.pt"), 2, "a link to nothing")


def test_no_permission_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = made(tmp_path / "archive", [1, 2])
    (archive / "other.xyz").write_bytes(b"x")
    closed: set[Path] = {archive / "other.xyz"}
    real = os.access
    # because whoever runs tests may be root, to whom nothing is closed
    monkeypatch.setattr(
        os, "access", lambda path, mode, **k: Path(path) not in closed and real(path, mode, **k)
    )
    assert "1 without permission to read (other.xyz)" in call("index", archive).out
    closed.add(archive)
    one_line(call("index", archive), 2, "no permission", str(archive))
    one_line(call("run", archive), 2, "no permission")


def test_each_kind_that_is_passed_over_is_told_in_one_line(tmp_path: Path) -> None:
    archive = made(tmp_path / "archive", [1, 2])
    os.mkfifo(archive / "step-3.pt")
    (archive / "step-4.pt").symlink_to("nothing")
    for name in ("e1", "e2", "e3", "step-5.pt"):
        (archive / name).mkdir()
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(archive)  # a socket's path is short
        server.bind("s")
    with no_waiting():
        remarks = call("index", archive, "--json").json["remarks"]
    assert remarks == [
        "passed over: 3 empty folders (e1, e2, 1 more), 1 socket (s), 1 pipe (step-3.pt), "
        "1 link to nothing (step-4.pt), 1 folder named like a file (step-5.pt)"
    ]
    with no_waiting():
        assert remarks[0] in call("scan", archive).out
        assert remarks[0] in call("run", archive).err
    assert passed_over(archive / "e1", []) == []


def test_a_pipe_in_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "step=000005").mkdir()
    os.mkfifo(tmp_path / "step=000005" / "manifest.json")
    with no_waiting():
        assert call("index", tmp_path).code == 5
        with pytest.raises(CheckpointUnreadable, match=r"no manifest\.json there"):
            Manifest.read(tmp_path / "step=000005")


@given(st.text(st.characters()))
def test_what_is_shown_prints_and_stays_one_line(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(shown(text)) == shown(text)
    if text.isprintable():
        assert shown(text) == text


def test_control_characters_of_names_reach_no_terminal(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    names = ["a\x1b[31m-1.pt", "b\n-2.pt", os.fsdecode(b"c\xff-3.pt"), "d\u202e-4.pt"]
    for step, name in enumerate(names, 1):
        content = torch.full((3,), float("nan") if step > 2 else 1.0 + step)
        torch.save({"step": step, "w\x1b[2J\nq\udcff": content}, archive / name)
    for typed in (["index"], ["scan", "--statistics"], ["run"], ["start"], ["status"], ["seal"]):
        answer = call(*typed, archive)
        lines = (answer.out + answer.err).split("\n")
        assert all(line.isprintable() for line in lines), lines
        assert not any(line.startswith(("q", "-2.pt")) for line in lines)
    assert "w\\x1b[2J\\nq\\udcff" in call("scan", "--statistics", archive).out
    paths = [row["path"] for row in call("index", archive, "--json").json["checkpoints"]]
    assert [Path(path).name for path in paths] == names  # as they are, for other programs
    one_line(call("index", archive / "x\x1b[0m\ny"), 2, "x\\x1b[0m\\ny")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("good", "which step"),
        ("good x", "'x' is no step"),
        ("good 99999999999999999999", "is no step"),
        ("nope 5", "'nope' is none of good, bad, untestable, skip"),
        ("good 3 foo", "'foo' is no KEY=VALUE"),
        ("good 3 seconds=abc", "seconds is no number"),
        ("good 3 at=never", "'never' is no time"),
        ('good "3', "a quotation mark without its second one"),
        ("start repeat=abc", "the value of 'repeat'"),
        ("start confidence=abc", "the value of 'confidence'"),
        ("start nope=3", "'nope' is no option of a search"),
        ('{"event":"start"}', "it lacks 'version'"),
        ('{"event":"start","version":1,"archive":"x","asked":null}', "those of a session"),
    ],
)
def test_a_log_that_cannot_be_read_says_why_in_words(line: str, says: str) -> None:
    with pytest.raises(UsageError, match="no log of a session") as raised:
        read_log(line.encode(), "search.log")
    assert says in str(raised.value)
    assert not any(word in raised.value.what for word in PYTHONS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cut off or no JSON, in line 1"),
        ('{\n"schema": ', "in line 2"),
        ("null", "it holds no object"),
        ('{"schema": "x"}', "its schema is 'x'"),
        (json.dumps({"schema": SCHEMA}), "it has no 'tensors'"),
        (json.dumps({"schema": SCHEMA, "new": 1}), "an entry 'new'"),
        (json.dumps({"schema": SCHEMA, "tensors": {"w": None}}), "tensor 'w' holds no digest"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why_in_words(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointUnreadable) as raised:
        Manifest.read(tmp_path)
    assert says in raised.value.what
    assert not any(word in raised.value.what for word in PYTHONS)


def test_reasons_of_a_manifest_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    content = {
        "schema": SCHEMA, "step": 1, "trace_step": 1, "attempt": 0, "status": "suspect",
        "reasons": [1], "file": "state.pt", "bytes": 1, "tensors": {}, "created": 0.0,
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointUnreadable, match="reasons"):
        Manifest.read(tmp_path)


def test_a_suspect_without_a_reason_is_not_told_because_of_nothing() -> None:
    class Judge:
        proves = False

    one = Checkpoint(5, Path("x"), "torch", "suspect", ())
    (line,) = of_suspects([one], [one], None, Judge())  # type: ignore[arg-type]
    assert "because" not in line
    assert "step 5 without a reason" in line


def test_the_answer_says_who_judged(tmp_path: Path) -> None:
    archive = made(tmp_path / "archive", [100, 200, 300])
    call("start", archive)
    call("bad", archive, 300)
    call("good", archive, 100)
    done = call("bad", archive, 200, "--json").json["result"]
    assert sentence(done).endswith("not proven, judged by hand.")
    probes = [*done["probes"], {"step": 1, "verdict": "clean", "oracle": "command"}]
    assert "judged by hand and by a command" in sentence({**done, "probes": probes})
    assert sentence({**done, "probes": []}).endswith("not proven.")


def test_statistics_asked_for_by_name_say_what_they_do_not_see(tmp_path: Path) -> None:
    archive = made(tmp_path / "archive", [100, 200, 300])
    assert "small faults it does not see" in call("run", archive, "--oracle", "statistics").out


def test_findings_come_before_what_is_missing() -> None:
    missing = [f"checkpoint-5 incomplete: {name} missing" for name in "abcde"]
    one = Checkpoint(5, Path("x"), "hf-trainer", "untested", (*missing, "model: damaged"))
    (line,) = index_lines([one])
    assert line.index("model: damaged") < line.index("a missing")
    assert line.endswith("c missing; and 2 more")


def test_a_guards_checkpoints_a_folder_deeper_are_pointed_at(tmp_path: Path) -> None:
    folder = tmp_path / "parent" / "x" / "step=000500"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    answer = call("index", tmp_path / "parent")
    one_line(answer, 5, f"give {tmp_path / 'parent' / 'x'}")


def test_the_example_of_ones_own_folder_is_as_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bisecting.md").read_text(encoding="utf-8")
    section = page.partition("### Your own torch.save folder")[2].partition("\n### ")[0]
    keys = re.findall(r"`(\w+)`", section.partition("first of the keys")[2].partition(";")[0])
    assert set(keys) == set(_KEYS)
    for place, key in enumerate(keys):
        torch.save({key: 100 + place, "w": torch.ones(2)}, tmp_path / f"x{place}.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "step-300.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    rows = call("index", tmp_path, "--json").json["checkpoints"]
    assert [row["step"] for row in rows] == [0, *range(100, 100 + len(keys)), 300]
    (note,) = rows[0]["notes"]
    assert f'"{note}"' in section


def test_what_all_checkpoints_say_is_said_once(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_file({"w": torch.ones(3)}, tmp_path / f"step-{step}.safetensors")
    lines = call("scan", tmp_path, "--no-statistics").out.splitlines()
    assert [line.split() for line in lines[:3]] == [[str(step), "untested"] for step in (1, 2, 3)]
    assert lines[3].startswith("each of them: no checksum in safetensors")
