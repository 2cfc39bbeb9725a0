"""A replay that writes over the checkpoints of the training is told, before and after."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_training import LAST, Fault, train

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.journal import Session
from forensics.safe_copies import FOLDER, keep
from forensics.unfinished import put_back_left
from forensics.verifying import Asked, Verification
from forensics.written_over import Before, at_risk
from sdc_guard import RunReader
from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.errors import CommandFailed, UsageError
from sdc_guard.guard import RUN_VARIABLE


def saved(folder: Path, step: int) -> Checkpoint:
    path = folder / f"it{step}.pt"
    path.write_bytes(b"x" * step)
    return Checkpoint(step, path, "torch", "clean")


def test_files_that_became_others_are_named_and_those_that_are_gone_are_not(
    tmp_path: Path,
) -> None:
    found = [saved(tmp_path, step) for step in (10, 20, 30)]
    before = Before.of(found)
    assert before.written_over() is None
    found[2].path.unlink()
    assert before.written_over() is None
    found[1].path.write_bytes(b"y" * 21)
    told = before.written_over()
    assert told is not None
    assert "replayed: it20.pt (step 20);" in told


def test_a_file_of_the_same_size_counts_by_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    one = saved(folder, 7)
    before = Before.of([Checkpoint(7, folder, "hf", "clean")])
    later = one.path.stat().st_mtime_ns + 10**9
    os.utime(one.path, ns=(later, later))
    told = before.written_over()
    assert told is not None
    assert "checkpoint-7 (step 7)" in told


@pytest.mark.parametrize(
    ("command", "start", "until", "risky"),
    [
        (("python", "t.py", "{ckpt}"), 10, 20, True),
        (("python", "t.py", "{ckpt}"), 10, 19, False),  # no step that was saved
        (("python", "t.py", "{ckpt}", "--out={run}/saved"), 10, 20, False),
        ((), 10, 20, False),
    ],
)
def test_only_what_may_be_written_over_is_at_risk(
    tmp_path: Path, command: tuple[str, ...], start: int, until: int, risky: bool
) -> None:
    found = [saved(tmp_path, step) for step in (10, 20)]
    own, archive = at_risk(command, tmp_path / "run", found, start, until)
    assert ([one.step for one in own], archive) == ([20] if risky else [], [])


def test_a_guards_own_checkpoints_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "archive"
    folder.mkdir(parents=True)
    one = saved(folder, 20)
    assert at_risk(("python", "{ckpt}"), tmp_path / "run", [one], 10, 30) == ([], [one])


class Careless:
    """Replays in this process, and writes to a file that the training saved."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def inputs(self) -> dict[str, Any]:
        return {"command": ["python", "train.py", "{ckpt}"]}

    def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
        os.environ[RUN_VARIABLE] = str(target)
        try:
            found = train(target, until, resume=checkpoint.path)
        finally:
            del os.environ[RUN_VARIABLE]
        self.file.write_bytes(self.file.read_bytes() + b"\0")
        return found


def test_an_answer_says_that_a_checkpoint_was_put_back(tmp_path: Path) -> None:
    run = train(tmp_path, LAST, Fault("param", 13, "1.weight"))
    (last,) = [one for one in index(run) if one.step == LAST]
    file = next(last.path.rglob("*.pt"))
    original = file.read_bytes()
    told: list[str] = []
    with RunReader(run) as reader:
        plan = Verification.of(reader, index(run), Asked(), told.append)
    result = plan.result(Careless(file), told.append)
    assert result.first_corrupt == 13
    over = f"{last.path.name} was written over by the replay, and put back as the training had "
    assert sum(line.startswith(over) for line in result.evidence) == 1
    assert file.read_bytes() == original
    assert not any(line.startswith("written over") for line in result.evidence)


@pytest.mark.parametrize("stop", [CommandFailed("the resume command ended with 1"), SystemExit(1)])
def test_it_is_put_back_too_where_replays_give_no_answer(
    tmp_path: Path, stop: BaseException
) -> None:
    run = train(tmp_path, LAST)
    (last,) = [one for one in index(run) if one.step == LAST]
    file = next(last.path.rglob("*.pt"))
    original = file.read_bytes()

    class Fails(Careless):
        def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
            file.write_bytes(b"")
            raise stop

    told: list[str] = []
    with RunReader(run) as reader:
        plan = Verification.of(reader, index(run), Asked(start=15), told.append)
    with pytest.raises(type(stop)):
        plan.result(Fails(file), told.append)
    assert sum("put back" in line for line in told) == 1
    assert file.read_bytes() == original


def killed(home: Path, one: Checkpoint) -> Session:
    """A session whose replay wrote over a checkpoint and its seal, and was killed."""
    seal_of(one.path).write_text("the training's")
    home.mkdir()
    session = Session.under(home)
    session.note("verify", inputs={"attempts": 1})
    assert keep(session.folder, [one], [], overwrite=False)
    one.path.write_bytes(b"y" * one.step)
    seal_of(one.path).write_text("the replay's")
    return session


def test_after_a_kill_the_next_verification_puts_back(tmp_path: Path) -> None:
    one = saved(tmp_path, 20)
    before = one.path.stat().st_mtime_ns
    session = killed(tmp_path / "bisect", one)
    told: list[str] = []
    put_back_left(tmp_path / "bisect", 1, told.append)
    assert one.path.read_bytes() == b"x" * 20
    assert seal_of(one.path).read_text() == "the training's"
    assert one.path.stat().st_mtime_ns == before
    assert [line.startswith("it20.pt was written over") for line in told] == [True]
    assert not (session.folder / FOLDER).exists()
    put_back_left(tmp_path / "bisect", 1, told.append)
    assert len(told) == 1


def test_a_copied_run_writes_nothing_into_the_place_of_the_first(tmp_path: Path) -> None:
    one = saved(tmp_path, 20)
    killed(tmp_path / "bisect", one)
    shutil.copytree(tmp_path / "bisect", tmp_path / "copy" / "bisect")
    told: list[str] = []
    put_back_left(tmp_path / "copy" / "bisect", 1, told.append)
    assert one.path.read_bytes() == b"y" * 20
    assert ["made in another folder" in line for line in told] == [True]
    put_back_left(tmp_path / "bisect", 1, told.append)
    assert one.path.read_bytes() == b"x" * 20


def test_what_a_training_saved_since_is_left_alone(tmp_path: Path) -> None:
    one = saved(tmp_path, 20)
    session = killed(tmp_path / "bisect", one)
    told: list[str] = []
    put_back_left(tmp_path / "bisect", 2, told.append)
    assert one.path.read_bytes() == b"y" * 20
    assert [str(session.folder / FOLDER) in line for line in told] == [True]
    with pytest.raises(UsageError):  # the copies are never thrown away
        keep(session.folder, [one], [], overwrite=True)


def test_without_room_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = saved(tmp_path, 20)
    home = tmp_path / "bisect"
    home.mkdir()
    monkeypatch.setattr("forensics.safe_copies._cloned", lambda *_: False)
    monkeypatch.setattr("forensics.safe_copies._RESERVE", 1 << 62)
    with pytest.raises(UsageError, match="no room to keep") as refused:
        keep(home, [one], [], overwrite=False)
    assert "{run}" in str(refused.value.next_step)
    assert "--overwrite" in str(refused.value.next_step)
    assert not (home / FOLDER).exists()
    assert not keep(home, [one], [], overwrite=True)
