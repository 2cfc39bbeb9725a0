"""A replay that writes over the checkpoints of the training is told, before and after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_training import LAST, Fault, train

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.verifying import Asked, Verification
from forensics.written_over import Before, may_write_over
from sdc_guard import RunReader
from sdc_guard.errors import CommandFailed
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
    ("command", "start", "until", "warned"),
    [
        (("python", "t.py", "{ckpt}"), 10, 20, True),
        (("python", "t.py", "{ckpt}"), 10, 19, False),  # no step that was saved
        (("python", "t.py", "{ckpt}", "--out={run}/saved"), 10, 20, False),
        ((), 10, 20, False),
    ],
)
def test_only_what_may_be_written_over_is_warned_of(
    tmp_path: Path, command: tuple[str, ...], start: int, until: int, warned: bool
) -> None:
    found = [saved(tmp_path, step) for step in (10, 20)]
    told = may_write_over(command, tmp_path / "run", found, start, until)
    assert (told is not None) == warned
    assert told is None or "it20.pt" in told


def test_a_guards_own_checkpoints_are_not_warned_of(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "archive"
    folder.mkdir(parents=True)
    command = ("python", "t.py", "{ckpt}")
    assert may_write_over(command, tmp_path / "run", [saved(folder, 20)], 10, 30) is None


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


def test_an_answer_says_that_a_checkpoint_was_written_over(tmp_path: Path) -> None:
    run = train(tmp_path, LAST, Fault("param", 13, "1.weight"))
    (last,) = [one for one in index(run) if one.step == LAST]
    told: list[str] = []
    with RunReader(run) as reader:
        plan = Verification.of(reader, index(run), Asked(), told.append)
    result = plan.result(Careless(next(last.path.rglob("*.pt"))), told.append)
    assert result.first_corrupt == 13
    over = [line for line in result.evidence if line.startswith("written over")]
    assert [f"{last.path.name} (step {LAST})" in line for line in over] == [True]


def test_it_is_told_too_where_replays_give_no_answer(tmp_path: Path) -> None:
    run = train(tmp_path, LAST)
    (last,) = [one for one in index(run) if one.step == LAST]
    file = next(last.path.rglob("*.pt"))

    class Fails(Careless):
        def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
            file.write_bytes(b"")
            raise CommandFailed("the resume command ended with 1")

    told: list[str] = []
    with RunReader(run) as reader:
        plan = Verification.of(reader, index(run), Asked(start=15), told.append)
    with pytest.raises(CommandFailed):
        plan.result(Fails(file), told.append)
    assert sum(line.startswith("written over") for line in told) == 1
