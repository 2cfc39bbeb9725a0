"""Two judges in one search: what the first says, what the second makes of it, what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from session_archives import call, counting, file_of, journal, judged, one_line

from forensics import judging
from forensics.checkpoint import Checkpoint
from forensics.commands.without_trace import _paths
from forensics.index import index
from forensics.oracles.integrity import IntegrityOracle
from forensics.oracles.judgement import Judgement
from forensics.oracles.statistics import StatisticsOracle
from forensics.oracles.whole_files import WholeFiles
from forensics.search.binary import Binary
from forensics.search.foremost import Foremost
from forensics.search.planner import drive
from sdc_guard.errors import ArchiveUnreachable

STEPS = range(100, 1300, 100)
BAD = 800


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Weights that drift; from BAD on one of them is as no training leaves it."""
    folder = tmp_path / "archive"
    folder.mkdir()
    start = torch.randn(64, generator=torch.Generator().manual_seed(7))
    for step in STEPS:
        weights = start + step * 1e-4
        if step >= BAD:
            weights[3] = 1e35
        torch.save({"step": step, "w": weights}, file_of(folder, step))
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The steps that each of the two was asked for; Ctrl-C after the number in "stop"."""
    steps: dict[str, list[Any]] = {"integrity": [], "statistics": [], "stop": []}

    for name, oracle in (("integrity", IntegrityOracle), ("statistics", StatisticsOracle)):
        judge = oracle.judge

        def watch(self, checkpoint: Checkpoint, judge=judge, name=name) -> Judgement:  # type: ignore[no-untyped-def]
            if steps["stop"] == [name, len(steps[name])]:
                raise KeyboardInterrupt
            steps[name].append(checkpoint.step)
            return judge(self, checkpoint)  # type: ignore[no-any-return]

        monkeypatch.setattr(oracle, "judge", watch)
    return steps


def _events(archive: Path, number: int = 1) -> list[tuple[str, int | str | None]]:
    lines = [json.loads(line) for line in journal(archive, number).read_text().splitlines()]
    return [
        (line.get("by", line["event"]), line.get("step", line.get("over")))
        for line in lines
        if line["event"] in ("probe", "stage")
    ]


def _flipped(archive: Path, step: int) -> bytes:
    """A file's bytes with a bit of its weights flipped."""
    content = bytearray(file_of(archive, step).read_bytes())
    content[content.index(torch.load(file_of(archive, step))["w"].numpy().tobytes()) + 40] ^= 4
    return bytes(content)


def test_auto_keeps_what_each_of_them_judged(archive: Path) -> None:
    done = call("run", archive, "--json")
    assert done.code == 1
    assert (done.json["last_clean"], done.json["first_corrupt"]) == (700, 800)
    assert done.json["proven"] is False
    events = _events(archive)
    stage = events.index(("stage", "integrity"))
    assert {by for by, _ in events[:stage]} == {"integrity"}
    assert sorted(step for _, step in events[:stage]) == list(STEPS)  # type: ignore[type-var]
    assert {by for by, _ in events[stage + 1 :]} == {"statistics"}
    assert len(events[stage + 1 :]) == 6
    assert "no session is open" in call("status", archive).err


def test_one_that_the_first_convicts_is_not_shown_to_the_second(
    archive: Path, asked: dict[str, list[Any]]
) -> None:
    file_of(archive, 500).write_bytes(_flipped(archive, 500))
    done = call("run", archive, "--json")
    assert (done.json["first_corrupt"], done.json["proven"]) == (500, True)
    assert done.json["damaged_files"] == [500]
    assert (done.json["state"]["last_clean"], done.json["state"]["first_corrupt"]) == (700, 800)
    assert 500 not in asked["statistics"]


@pytest.mark.parametrize(("name", "after"), [("integrity", 5), ("statistics", 3)])
def test_ctrl_c_of_either_keeps_both(
    archive: Path, asked: dict[str, list[Any]], name: str, after: int
) -> None:
    """Checksums of both ends are looked at before: whether there are any."""
    asked["stop"] += [name, after]
    one_line(call("run", archive), 130, "stopped after 3 judgings", "goes on from there")
    kept = [step for by, step in _events(archive) if by == name]
    assert len(kept) == 3
    asked["stop"].clear()
    done = call("run", archive, "--json")
    assert (done.code, done.json["first_corrupt"]) == (1, 800)
    assert [by for by, _ in _events(archive)].count("integrity") == len(STEPS)  # each once
    assert len(asked["integrity"]) == len(STEPS) + 2
    assert len(asked["statistics"]) == len(set(asked["statistics"])) == 6
    assert not (archive / ".sdc-bisect" / "0002").exists()


def test_a_file_that_rots_after_checksums_had_their_say_is_read_again(
    archive: Path, asked: dict[str, list[Any]]
) -> None:
    asked["stop"] += ["statistics", 2]
    assert call("run", archive).code == 130
    assert ("stage", "integrity") in _events(archive)
    asked["stop"].clear()
    file_of(archive, 200).write_bytes(_flipped(archive, 200))
    file_of(archive, 300).touch()  # the same bytes
    done = call("run", archive, "--json")
    assert "step 200 changed since it was judged (clean, by integrity)" in done.err
    assert "step 300" not in done.err.partition("changed")[0]
    assert done.json["damaged_files"] == [200]


def test_a_store_that_goes_down_is_no_stage(
    archive: Path, asked: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of either judge: the session stays, and the same command asks what was not asked."""
    for name in ("integrity", "statistics"):
        monkeypatch.setattr(judging, "still_there", _down_after(asked, name, 4))
        gone = call("run", archive)
        assert (gone.code, "the store cannot be reached" in gone.err) == (5, True)
    assert _events(archive).count(("stage", "integrity")) == 1
    monkeypatch.undo()
    done = call("run", archive, "--json")
    assert (done.code, done.json["first_corrupt"]) == (1, 800)
    assert [by for by, _ in _events(archive)].count("integrity") == len(STEPS)  # each once
    assert not (archive / ".sdc-bisect" / "0002").exists()


@pytest.mark.parametrize("after", [1, 3])
def test_a_store_that_goes_down_beside_a_damaged_file_is_no_answer(
    archive: Path, asked: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    file_of(archive, 500).write_bytes(_flipped(archive, 500))
    monkeypatch.setattr(judging, "still_there", _down_after(asked, "statistics", after))
    assert call("run", archive).code == 5
    monkeypatch.undo()
    done = call("run", archive, "--json")
    assert (done.json["damaged_files"], done.json["state"]["first_corrupt"]) == ([500], 800)
    assert not (archive / ".sdc-bisect" / "0002").exists()


def _down_after(asked: dict[str, list[Any]], name: str, count: int) -> Callable[[Path], None]:
    def still_there(_: Path) -> None:
        if len(asked[name]) > count:
            raise ArchiveUnreachable("the store cannot be reached")

    return still_there


def test_ctrl_c_while_the_values_are_looked_at_names_what_is_kept(
    archive: Path, asked: dict[str, list[Any]]
) -> None:
    file_of(archive, 500).write_bytes(_flipped(archive, 500))
    asked["stop"] += ["statistics", 2]
    stopped = call("run", archive)
    one_line(stopped, 130, "what checksums said is kept in", "0001")
    assert "--good" not in stopped.err
    count = len(asked["integrity"])
    asked["stop"].clear()
    done = call("run", archive, "--json")
    assert (done.json["damaged_files"], done.json["state"]["first_corrupt"]) == ([500], 800)
    again = [step for step in asked["integrity"][count:] if step <= 500]
    assert again == []


def test_of_two_files_of_a_step_each_is_read(archive: Path) -> None:
    """The one that was read says nothing of the other."""
    last = archive / "last.pt"
    last.write_bytes(_flipped(archive, 700))
    sound, damaged = (one for one in index(archive) if one.step == 700)
    if sound.path == last:
        sound, damaged = damaged, sound
    judge = WholeFiles(StatisticsOracle([sound, damaged]), {sound.path})
    assert judge.judge(damaged).stored_bytes
    assert judge.read() == {last}
    assert [one["step"] for one in judge.probes()] == [700]
    assert _paths([sound, damaged], [700]) == frozenset()
    assert _paths([sound, damaged], [700, 700]) == {sound.path, last}


def test_a_judge_of_ours_keeps_its_jobs_where_ray_is_asked_for(archive: Path) -> None:
    done = call("run", archive, "--oracle", "integrity", "--executor", "ray", "--jobs", 2)
    assert "integrity judges on this machine, 2 at once" in done.err
    assert "one checkpoint at a time" not in done.err


def test_a_session_that_start_began_goes_on_with_auto(archive: Path) -> None:
    call("start", archive)
    call("bad", archive, 1000)
    done = call("run", archive, "--json")
    assert (done.code, done.json["last_clean"], done.json["first_corrupt"]) == (1, 700, 800)
    told = call("status", archive, "--json")
    assert told.json["result"]["first_corrupt"] == 800
    assert {entry["by"] for entry in told.json["judged"]} == {"user", "statistics"}


def test_a_command_confirms_what_a_cheap_judge_found(archive: Path, tmp_path: Path) -> None:
    done = call("run", archive, "--oracle", "statistics", "--json", *counting(tmp_path, BAD))
    assert (done.code, done.json["last_clean"], done.json["first_corrupt"]) == (1, 700, 800)
    assert sorted(judged(tmp_path)) == [700, 800]
    assert {probe["oracle"] for probe in done.json["probes"]} == {"command"}
    assert "statistics found (700, 800]; command agrees" in done.json["evidence"]


def test_a_command_that_disagrees_goes_on_alone(archive: Path, tmp_path: Path) -> None:
    done = call("run", archive, "--oracle", "statistics", "--json", *counting(tmp_path, 500))
    assert (done.json["last_clean"], done.json["first_corrupt"]) == (400, 500)
    assert judged(tmp_path)[:2] == [800, 700]
    assert "statistics found (700, 800]; command says otherwise" in done.json["evidence"]


def test_a_command_that_fails_asks_the_cheap_one_no_more(
    archive: Path, tmp_path: Path, asked: dict[str, list[Any]]
) -> None:
    script = f'test -e "{tmp_path}/mended" || exit 7; test {{step}} -lt {BAD} # {{ckpt}}'
    words = ("run", archive, "--oracle", "statistics", "--json", "--", "sh", "-c", script)
    stopped = call(*words)
    assert (stopped.code, "ended with 7 on step 800" in stopped.out) == (2, True)
    count = len(asked["statistics"])
    (tmp_path / "mended").touch()
    assert call(*words).json["first_corrupt"] == 800
    assert len(asked["statistics"]) == count


def test_a_dry_run_tells_of_both(archive: Path, tmp_path: Path) -> None:
    plan = call("run", archive, "--dry-run", "--json")
    assert (plan.json["probes"]["worst"], plan.json["then"]["oracle"]) == (12, "statistics")
    check = counting(tmp_path, BAD)
    told = call("run", archive, "--dry-run", "--oracle", "integrity", "--cost", 60, *check)
    assert "command: 2 judgings if it agrees with integrity" in told.out
    assert not (archive / ".sdc-bisect").exists()


@pytest.mark.parametrize("edge", range(13))
def test_a_bracket_that_holds_takes_two_judgings(edge: int) -> None:
    ends = [place for place in (edge, edge - 1) if 0 <= place < 12]
    found = drive(Foremost(Binary(12), ends), lambda place: "corrupt" if place >= edge else "clean")
    assert found.first_corrupt == (edge if edge < 12 else None)
    if 0 < edge < 12:
        assert [place for place, _ in found.probes] == ends
    assert len(found.probes) <= 2 + len(ends)
