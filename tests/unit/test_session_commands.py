"""The session's commands, as they are typed: what they print, keep, refuse, and end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from session_archives import call, counting, file_of, journal, judged, made, one_line

from forensics.oracles.command import CommandOracle

STEPS = range(100, 1700, 100)  # 16: at most 6 judgings
BAD = 900


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return made(tmp_path / "archive", STEPS)


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
    call("bad", archive, 1600)
    verified = call("good", archive, 100, "--json")  # judged after all
    assert verified.json["result"]["trusted"] == []


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
    judged_after_all = call("good", archive, 300, "--json")
    assert judged_after_all.code == 1
    assert judged_after_all.json["result"]["skipped"] == []


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


def test_a_skip_says_what_it_drops(archive: Path) -> None:
    call("start", archive)
    call("good", archive, 300)
    skipped = call("skip", archive, 300, 400)
    assert "step 300 clean, by user, counts no more" in skipped.out
    assert "step 400" not in skipped.out.split("judge next")[0]
    call("undo", archive)
    back = call("undo", archive, "--json")
    assert back.json["last_clean"] == 300


def test_status_tells_that_nothing_can_be_judged(archive: Path) -> None:
    call("start", archive)
    call("skip", archive, *STEPS)
    told = call("status", archive)
    assert (told.code, told.err) == (0, "")
    assert "nothing is left to judge: none of 16 checkpoints can be judged" in told.out
    told = call("status", archive, "--json")
    assert (told.code, told.json["result"]) == (0, None)
    assert "all are skipped" in told.json["trouble"]["what"]
