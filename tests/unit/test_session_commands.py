"""The session's commands, as they are typed: what they print, keep, refuse, and end with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from session_archives import Answer, call, counting, file_of, judged, made

from forensics.oracles.command import CommandOracle
from forensics.sessions.lock import Owner, locked
from sdc_guard.errors import UsageError

STEPS = range(100, 1700, 100)  # 16: at most 6 judgings
BAD = 900


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "archive", STEPS)


@pytest.fixture
def archive(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "archive"))


def one_line(answer: Answer, code: int, *parts: str) -> None:
    """An error: its code, on one line of stderr, nothing on stdout."""
    assert answer.code == code, answer
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert lines[-1].startswith("sdc-bisect: ")
    for part in parts:
        assert part in lines[-1]


def journal(archive: Path, number: int = 1) -> Path:
    return archive / ".sdc-bisect" / f"{number:04d}" / "journal.jsonl"


def test_a_session_by_hand(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = call("start", archive)
    assert begun.code == 0
    assert "judge next: step 1600" in begun.out
    assert str(journal(archive).parent) in begun.err
    one_line(call("start", archive), 2, "open already", "0001", "sdc-bisect reset")
    assert "then, if good: step 1200; if bad: step 400" in call("bad", archive, 1600).out + (
        call("good", archive, 100).out
    )
    monkeypatch.chdir(archive)  # PATH may be left out there
    assert "judge next: step 1200" in call("good", 800).out
    assert "judge next: step 1000" in call("bad", 1200).out
    assert "3 judgings" not in call("bad", 1000).out
    done = call("bad", BAD)
    assert done.code == 1
    assert "(800, 900]" in done.out
    assert json.loads((journal(archive).parent / "result.json").read_text())["first_corrupt"] == BAD
    status = call("status", "--json")
    assert status.code == 0
    assert status.json["result"]["first_corrupt"] == BAD
    assert status.json["schema"] == {"name": "sdc-bisect.status", "version": 1}
    taken = call("undo", "--json")
    assert (taken.code, taken.json["result"], taken.json["next"]["step"]) == (0, None, BAD)
    assert not (journal(archive).parent / "result.json").exists()
    again = call("bad", "checkpoint-900.pt")  # by its name
    assert (again.code, again.out) == (1, done.out)
    reset = call("reset")
    assert "0001" in reset.out
    assert journal(archive).exists()
    one_line(call("good", 100), 2, "no session is open", "sdc-bisect start")
    assert "0002" in call("start", ".").err


def test_a_session_replayed_from_its_log_gives_the_same(archive: Path, tmp_path: Path) -> None:
    call("start", archive, "--good", 200, "--skip", 800)
    call("good", archive, 200)
    call("bad", archive, 1600)
    call("bad", archive, 300)
    call("undo", archive)
    by_run = call("run", archive, "--json", *counting(tmp_path, BAD))
    log = tmp_path / "search.log"
    log.write_text(call("log", archive).out)
    assert "by=user" in log.read_text()
    assert "by=command" in log.read_text()
    one_line(call("replay", log, archive), 2, "open already")
    before = call("status", archive, "--json").json
    call("reset", archive)
    again = call("replay", log, archive, "--json")
    assert again.code == by_run.code == 3
    assert again.json["result"] == by_run.json == before["result"]
    assert by_run.json["skipped"] == [800]
    # and from the journal itself
    call("reset", archive)
    again = call("replay", journal(archive), archive, "--json")
    assert again.json["result"] == by_run.json
    # what has other bytes than those that were judged is left out
    call("reset", archive)
    torch.save({"step": 1600, "other": torch.zeros(3)}, file_of(archive, 1600))
    assert "left out: step 1600: its bytes" in call("replay", log, archive, "--dry-run").err
    assert call("status", archive).code == 2  # nothing was begun


def test_run_goes_on_after_ctrl_c(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = counting(tmp_path, BAD)
    judge, count = CommandOracle.judge, [0]

    def thrice(self, checkpoint):  # type: ignore[no-untyped-def]
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return judge(self, checkpoint)

    monkeypatch.setattr(CommandOracle, "judge", thrice)
    stopped = call("run", archive, *check)
    one_line(stopped, 130, "3 judgings", "goes on from there")
    first = judged(tmp_path)
    assert len(first) == 3
    # another search does not take them for its own
    planned = call("run", archive, "--dry-run", "--json", *check).json["probes"]
    assert planned["worst"] == 3
    assert call("run", archive, "--dry-run", "--json", "--scan", *check).json["probes"]["best"] > 3
    monkeypatch.undo()
    done = call("run", archive, *check)
    assert done.code == 1
    assert "3 judged by command" in done.err
    assert len(judged(tmp_path)) == len(set(judged(tmp_path))) == 6
    assert "no session is open" in call("status", archive).err  # it is over
    call("run", archive, *check)
    assert len(judged(tmp_path)) == 12  # as always: a new search


def test_another_search_is_set_aside_not_mixed(archive: Path, tmp_path: Path) -> None:
    crash = ["--", "sh", "-c", "test {step} = 1600 && exit 1; exit 7"]
    one_line(call("run", archive, *crash), 2, "ended with 7")
    done = call("run", archive, *counting(tmp_path, BAD))
    assert done.code == 1
    assert "0001" in done.err
    assert len(judged(tmp_path)) == 6
    assert journal(archive).exists()


def test_run_judges_what_is_left_of_a_session_with_its_options(
    archive: Path, tmp_path: Path
) -> None:
    call("start", archive, "--good", 300, "--bad", 1500, "--trust-ends")
    call("good", archive, 700)
    check = counting(tmp_path, BAD)
    refused = call("run", archive, "--skip", 800, "--jobs", 2, *check)
    one_line(refused, 2, "leave out --skip")
    done = call("run", archive, "--json", *check)
    assert done.code == 1
    assert done.json["trusted"] == [300, 1500]
    assert any("trusted, not verified" in line for line in done.json["evidence"])
    assert {one["oracle"] for one in done.json["probes"]} == {"user", "command"}
    assert call("run", archive, "--json", *check).json == done.json  # it stays open
    assert len(judged(tmp_path)) == 3


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


def test_swapped_ends_are_asked_about(archive: Path) -> None:
    one_line(call("start", archive, "--good", 500, "--bad", 100), 2, "bad is before good: swapped?")
    check = ["--good", 500, "--bad", 100, "--", "sh", "-c", "exit {step}"]
    one_line(call("run", archive, *check), 2, "bad is before good: swapped?")
    assert not (archive / ".sdc-bisect").exists()
    call("start", archive)
    call("bad", archive, 300)
    assert "swapped?" in call("good", archive, 700).out
    call("reset", archive)
    mirrored = call("start", archive, "--first-good", "--good", 500, "--bad", 100, "--json")
    assert mirrored.json["next"]["step"] == 500


def test_ends_that_are_trusted_are_said_to_be(archive: Path) -> None:
    begun = call("start", archive, "--good", 100, "--bad", 1600, "--trust-ends")
    assert "judge next: step 800" in begun.out
    one_line(call("skip", archive, 1600), 2, "step 1600 is an end that is trusted")
    for step in (1500, 1400, 1300, 1200, 1100, 1000, 900, 800):
        call("skip", archive, step)
    answer = call("good", archive, 700)
    assert answer.code == 3
    assert "the ends were trusted, not verified: 100 clean, 1600 corrupt" in answer.out
    assert "skipped as asked: 800, 900, 1000" in answer.out  # and the answer is a range
    assert "(700, 1600]" in answer.out


def test_only_skipped_ones_left(archive: Path) -> None:
    call("start", archive, "--good", 200, "--bad", 500)
    call("good", archive, 200)
    call("bad", archive, 500)
    range_ = call("skip", archive, 300, 400, "--json")
    assert range_.code == 3
    result = range_.json["result"]
    assert (result["last_clean"], result["first_corrupt"]) == (200, 500)
    assert (result["exact"], result["skipped"]) == (False, [300, 400])
    call("undo", archive)
    assert call("bad", archive, 400).code == 3  # 300 is skipped
    assert call("good", archive, 300).code == 1  # what is skipped may still be judged


def test_nothing_that_can_be_judged(archive: Path) -> None:
    call("start", archive)
    one_line(call("skip", archive, *STEPS), 5, "none of 16 checkpoints can be judged")
    call("undo", archive)
    assert call("status", archive).code == 0


def test_what_is_said_before_it_is_kept(archive: Path) -> None:
    call("start", archive, "--dry-run")
    assert not (archive / ".sdc-bisect").exists()
    call("start", archive)
    before = journal(archive).read_bytes()
    assert "judge next: step 100 " in call("bad", archive, 1600, "--dry-run").out
    assert call("good", archive, 1600, "--dry-run", "--json").json["last_clean"] == 1600
    assert journal(archive).read_bytes() == before
    call("bad", archive, 1600)
    kept = journal(archive).read_bytes()
    assert "would be taken back: step 1600" in call("undo", archive, "--dry-run").out
    assert journal(archive).read_bytes() == kept


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


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["good", "{}"], "which step?"),
        (["good", "{}", 150], "no checkpoint of step 150"),
        (["good", "{}", "latest"], "no checkpoint 'latest'"),
        (["undo", "{}"], "nothing is judged yet"),
        (["start", "{}/checkpoint-100.pt"], "one checkpoint"),
        (["start", "ducklake:x?run=y"], "lie in a run's folder"),
    ],
)
def test_what_cannot_be_right_is_said_in_one_line(
    archive: Path, arguments: list[object], what: str
) -> None:
    call("start", archive)
    typed = [str(part).format(archive) for part in arguments]
    one_line(call(*typed), 2, what)
    error = call(*typed, "--json")
    assert error.code == 2
    assert error.json["schema"]["name"] == f"sdc-bisect.{arguments[0]}"
    assert what in error.json["error"]["what"]
    assert set(error.json["error"]) == {"what", "where", "next"}
    assert len(journal(archive).read_text().splitlines()) == 1  # nothing was kept


@pytest.mark.parametrize(
    "name", ["start", "good", "bad", "skip", "undo", "status", "log", "replay", "reset", "run"]
)
def test_every_command_has_help_with_examples(name: str) -> None:
    text = call(name, "--help").out
    assert "Examples:" in text
    assert f"sdc-bisect {name}" in text
    assert "--json" in text
    assert "--session DIR" in text
