"""What a session keeps, where it cannot, and who may write to it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from session_archives import call, counting, file_of, journal, judged, made, one_line

from forensics.journal import Session
from forensics.sessions.lock import Owner, locked
from sdc_guard.errors import UsageError

STEPS = range(100, 1700, 100)  # 16: at most 6 judgings
BAD = 900


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return made(tmp_path / "archive", STEPS)


def test_what_changed_is_judged_anew(archive: Path, tmp_path: Path) -> None:
    call("start", archive)
    call("run", archive, *counting(tmp_path, BAD))
    before = judged(tmp_path)
    os.utime(file_of(archive, 800))  # touched: the bytes are the same
    assert "step 800" not in call("run", archive, *counting(tmp_path, BAD)).err
    assert judged(tmp_path) == before
    torch.save({"step": 800, "weight": torch.zeros(5)}, file_of(archive, 800))
    assert "step 800 changed" in call("status", archive).out
    again = call("run", archive, *counting(tmp_path, BAD))
    assert "step 800 changed since it was judged (clean, by command)" in again.err
    assert again.code == 1
    anew = judged(tmp_path)[len(before) :]
    assert anew[-1] == 800
    assert not {*anew} & {*before} - {800}
    kept = [json.loads(line) for line in journal(archive).read_text().splitlines()]
    assert [one["step"] for one in kept if one["event"] == "touched"] == [800]
    assert [one["step"] for one in kept if one["event"] == "changed"] == [800]
    file_of(archive, 900).unlink()
    assert "(800, 1000]" in call("status", archive).out


def test_a_line_that_was_cut_short_is_told_and_left_out(archive: Path) -> None:
    call("start", archive)
    call("bad", archive, 1600)
    whole = journal(archive).read_bytes()
    journal(archive).write_bytes(whole + b'{"event": "probe", "st')
    assert "cut short" in call("status", archive).err
    told = call("good", archive, 100)
    assert '\'{"event": "probe", "st\'' in told.err
    lines = journal(archive).read_bytes().splitlines()
    assert lines[:2] == whole.splitlines()
    assert json.loads(lines[2])["step"] == 100
    assert "cut short" not in call("good", archive, 200).err


def test_a_damaged_journal_is_told_kept_and_taken_from(archive: Path, tmp_path: Path) -> None:
    call("start", archive)
    call("bad", archive, 1600)
    call("good", archive, 100)
    call("good", archive, 400)
    lines = journal(archive).read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"\0\0\0\n", *lines[3:]])
    journal(archive).write_bytes(damaged)
    for command in (["status"], ["good", archive, 200], ["log"], ["undo"], ["run"]):
        more = [archive] if len(command) == 1 else []
        check = counting(tmp_path, BAD) if command == ["run"] else []
        one_line(call(*command, *more, *check), 2, "line 3", "sdc-bisect reset", "replay")
    assert journal(archive).read_bytes() == damaged
    assert call("reset", archive).code == 0
    taken = call("replay", journal(archive), archive)
    assert "left out: line 3" in taken.err
    assert "known: 400 clean .. 1600 corrupt" in taken.out
    assert journal(archive).read_bytes() == damaged


def test_the_answer_comes_before_what_cannot_be_written(archive: Path, tmp_path: Path) -> None:
    call("start", archive)
    (journal(archive).parent / "result.json").mkdir()
    done = call("run", archive, *counting(tmp_path, BAD))
    assert done.code == 1
    assert "Checkpoint 900" in done.out
    assert "the answer cannot be kept" in done.err


def test_a_full_disk_stops_no_search(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("start", archive)

    def full(self: Session, event: str, **content: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Session, "note", full)
    one_line(call("good", archive, 100), 2, "No space left")  # what is said by hand is kept or not
    done = call("run", archive, *counting(tmp_path, BAD))
    assert done.code == 1
    assert "Checkpoint 900" in done.out
    assert done.err.count("judgings are no longer kept") == 1
    monkeypatch.undo()
    assert "judged: none" in call("status", archive).out


def test_run_answers_where_no_session_can_be_kept(archive: Path, tmp_path: Path) -> None:
    (archive / ".sdc-bisect").write_text("in the way")
    one_line(call("start", archive), 2, "no session can be kept", "--session DIR")
    done = call("run", archive, *counting(tmp_path, BAD))
    assert done.code == 1
    assert "not kept" in done.err
    elsewhere = tmp_path / "mine" / "sessions"
    assert call("start", archive, "--session", elsewhere).code == 0
    assert (elsewhere / "0001" / "journal.jsonl").is_file()
    assert "judge next: step 100 " in call("bad", 1600, "--session", elsewhere).out
    other = made(tmp_path / "other", [100, 200])
    one_line(call("good", other, 100, "--session", elsewhere), 2, "the session there is of")


def test_the_variable_names_the_folder(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDC_BISECT_SESSION", str(tmp_path / "mine"))
    call("start", archive)
    assert "16 checkpoints, judged: none" in call("status").out
    assert not (archive / ".sdc-bisect").exists()
    assert call("reset").code == 0


def test_two_at_once(archive: Path, tmp_path: Path) -> None:
    call("start", archive)
    folder = archive / ".sdc-bisect"
    with locked(folder):
        for command in (["good", archive, 100], ["undo", archive], ["reset", archive]):
            one_line(call(*command), 2, "in use by process", str(os.getpid()))
        one_line(call("run", archive, *counting(tmp_path, BAD)), 2, "in use by process")
        assert call("status", archive).code == 0  # only reads
    assert call("good", archive, 100).code == 0
    assert not (folder / "lock").exists()


@pytest.mark.parametrize(
    "owner",
    [
        {"pid": 2**22 + 1, "started": "1"},  # above the highest number that Linux gives
        {"pid": os.getpid(), "started": "1"},  # the number was given again
    ],
    ids=["gone", "another with its number"],
)
def test_the_lock_of_a_dead_process_is_taken_over(archive: Path, owner: dict[str, object]) -> None:
    call("start", archive)
    lock = archive / ".sdc-bisect" / "lock"
    lock.write_text(json.dumps({**vars(Owner.this()), **owner}))
    taken = call("good", archive, 100)
    assert taken.code == 0
    assert f"process {owner['pid']} ended without a word" in taken.err
    assert not lock.exists()


def test_a_process_of_another_machine_may_be_alive(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(json.dumps({**vars(Owner.this()), "host": "elsewhere", "pid": 2**22 + 1}))
    with pytest.raises(UsageError, match="on elsewhere"), locked(tmp_path):
        pass
    assert lock.exists()
