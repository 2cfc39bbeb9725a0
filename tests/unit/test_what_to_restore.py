"""What not to use, what to restore from, what cannot be read: archives with known faults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reported import report_on
from searched import checkpoints, table
from session_archives import call, file_of

from forensics.bracket import find_bracket
from forensics.checkpoint import Checkpoint
from forensics.reporting.as_json import content
from forensics.reporting.facts import Headline, Told
from forensics.reporting.figures import Figure, description, timeline
from forensics.reporting.going_back import go_back
from forensics.reporting.headline import of_session
from forensics.reporting.markdown import markdown
from forensics.wording import sentence

STEPS = range(100, 1300, 100)
BROKEN = 700  # the first whose state is wrong


def _saved(folder: Path, broken: int | None) -> Path:
    folder.mkdir()
    start = torch.randn(64, generator=torch.Generator().manual_seed(11))
    for step in STEPS:
        weights = start + step * 1e-4
        if broken is not None and step >= broken:
            weights[3] = 1e35
        torch.save({"step": step, "w": weights}, file_of(folder, step))
    return folder


def _rot(folder: Path, step: int) -> None:
    """One bit of the weights, in the file alone."""
    held = torch.load(file_of(folder, step))["w"].numpy().tobytes()
    content = bytearray(file_of(folder, step).read_bytes())
    content[content.index(held) + 40] ^= 4
    file_of(folder, step).write_bytes(content)


def _cut(folder: Path, step: int) -> None:
    os.truncate(file_of(folder, step), file_of(folder, step).stat().st_size // 2)


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Path]:
    def made(*, broken: int | None = None, rotten: tuple[int, ...] = (), cut: int = 0) -> Path:
        folder = _saved(tmp_path / "archive", broken)
        for step in rotten:
            _rot(folder, step)
        if cut:
            _cut(folder, cut)
        return folder

    return made


def test_a_damaged_file_alone_sends_nobody_back(archive: Callable[..., Path]) -> None:
    folder = archive(rotten=(500,))
    assert call("run", folder).code == 1
    report = report_on(folder)
    assert (report.go_back.step, report.go_back.needed) == (1200, False)
    assert report.headline.sentence.endswith(
        "Do not use the file of step 500; the newest sound one is 1200 (not proven: values looked "
        "usual)."
    )
    assert report.headline.interval is None
    assert "11 untested, 1 damaged" in description(report)
    assert "first corrupt" not in description(report)
    assert report.go_back.then == ()
    assert "## Restore from" in markdown(report)


def test_a_damaged_newest_file_is_passed_over(archive: Callable[..., Path]) -> None:
    folder = archive(rotten=(300, 1200))
    call("run", folder, "--scan")
    report = report_on(folder)
    assert report.go_back.step == 1100
    assert "Do not use the files of steps 300, 1200" in report.headline.sentence


def test_all_three_at_once(archive: Callable[..., Path]) -> None:
    folder = archive(broken=BROKEN, rotten=(500,), cut=900)
    done = call("run", folder, "--json")
    assert done.code == 1
    assert (done.json["damaged_files"], done.json["state"]["first_corrupt"]) == ([500], BROKEN)
    assert [one["step"] for one in done.json["unreadable"]] == [900]
    assert {"step": 600, "integrity": "clean"} in [
        {"step": one["step"], one["oracle"]: one["verdict"]} for one in done.json["probes"]
    ]  # bytes of what is advised were read
    report = report_on(folder)
    assert report.go_back.step == 600
    assert report.headline.interval == (600, BROKEN)
    assert "the file of step 900 cannot be read: truncated" in report.headline.sentence.lower()
    assert not any("is not shown" in limit for limit in report.headline.limits)
    assert "11 untested" not in description(report)
    assert "1 damaged, 1 unreadable; suspected since: step 700" in description(report)
    told = {one["step"]: one["judged"] for one in content(report)["checkpoints"]}
    assert told[500] == ["corrupt by integrity"]
    assert "corrupt by statistics" in told[BROKEN]
    (session,) = report.sessions
    assert {"integrity", "statistics"} <= {one.by for one in session.judged}
    assert f"--losses LOG --from 600 --to {BROKEN}" in report.go_back.then[0][0]


def test_the_newest_before_the_break_is_damaged_too(archive: Callable[..., Path]) -> None:
    folder = archive(broken=BROKEN, rotten=(300, 600))
    done = call("run", folder, "--json")
    # 300 is met by checksums first; values are looked at up to 600, whose bytes are then read
    assert done.json["damaged_files"] == [300, 600]
    back = report_on(folder).go_back
    assert back.step is not None
    assert back.step < 600


def test_a_search_by_checksums_takes_no_finding_of_the_training_back(
    archive: Callable[..., Path],
) -> None:
    folder = archive(broken=BROKEN, rotten=(500,))
    call("run", folder)
    call("run", folder, "--oracle", "integrity", "--scan")  # 800 to 1100 are clean by it
    report = report_on(folder)
    assert report.headline.source == "session 0002"
    assert report.go_back.step == 600
    assert "By another session: The training went wrong, too" in report.headline.sentence
    assert not any("is not shown" in limit for limit in report.headline.limits)


def test_scan_lists_the_changes_by_both_judges(archive: Callable[..., Path]) -> None:
    done = call("run", archive(broken=BROKEN, rotten=(500,)), "--scan", "--json")
    found = [(one["from"], one["to"], one["verdicts"][1]) for one in done.json["transitions"]]
    assert found == [(400, 500, "corrupt"), (500, 600, "clean"), (600, 700, "corrupt")]
    assert not any("--scan judges every one" in line for line in done.json["evidence"])


@pytest.mark.parametrize("oracle", ["auto", "integrity", "statistics", "consistency"])
def test_what_cannot_be_read_is_named_by_every_judge(
    oracle: str, archive: Callable[..., Path]
) -> None:
    done = call("run", archive(cut=900), "--oracle", oracle, "--json")
    assert (done.code, done.json["first_corrupt"], done.json["last_clean"]) == (3, None, 1200)
    (one,) = done.json["unreadable"]
    assert (one["step"], Path(one["path"]).name) == (900, file_of(Path(), 900).name)
    assert one["reason"].startswith("truncated at ")
    assert sentence(done.json).startswith(
        "Nothing corrupt was found up to step 1200; but the file of step 900 cannot be read: trunc"
    )
    assert sentence(done.json).endswith("do not restore from it.")


def test_the_counts_of_two_judges_are_not_mixed(archive: Callable[..., Path]) -> None:
    lines = call("run", archive(cut=900), "--json").json["evidence"]
    assert "2 of 12 checkpoints judged by their values" in lines
    assert "the bytes of 11 of 12 checkpoints fit their checksums" in lines


def _one_unread(steps: list[int], which: int) -> list[Checkpoint]:
    found = checkpoints(steps)
    place = steps.index(which)
    found[place] = Checkpoint(
        which, Path("x"), "torch", "untested", ("unreadable: empty",), readable=False
    )
    return found


@pytest.mark.parametrize("traits", [{}, {"proves": True}, {"proves": True, "persists": True}])
@pytest.mark.parametrize("which", [100, 300, 600])
def test_one_that_is_unread_leaves_a_range_whoever_judges(
    which: int, traits: dict[str, bool]
) -> None:
    judge = table("".join("u" if step == which else "g" for step in range(100, 700, 100)), **traits)
    result = find_bracket(_one_unread(list(judge.verdicts), which), judge, None, lambda _: None)
    assert result.exit_code == 3
    assert [(one["step"], one["reason"]) for one in result.unreadable] == [(which, "empty")]


def test_a_rotten_file_after_one_that_is_unread_is_no_first() -> None:
    judge = table("guggggb", proves=True)
    judge.rotten = frozenset({700})
    result = find_bracket(_one_unread(list(judge.verdicts), 200), judge, None, lambda _: None)
    assert (result.first_corrupt, result.exact, result.exit_code) == (700, False, 3)
    assert "The file of checkpoint 700 is damaged" in sentence(result.as_dict())


def test_by_a_trace_the_training_s_own_state_says_how_far() -> None:
    """A trace convicts: with its finding the advice is proven, and stays before a break."""
    result: dict[str, Any] = {
        "schema": {"name": "sdc-bisect.run", "version": 1}, "last_clean": 200,
        "first_corrupt": 300, "exact": True, "proven": True, "skipped": [], "tensors": [],
        "evidence": ["w: CRC"], "class": "stored bytes", "verdict": "undetermined", "rank": None,
        "damaged_files": [300], "probes": [
            {"step": step, "verdict": "corrupt" if step == 300 else "clean", "oracle": "trace"}
            for step in (100, 200, 300, 400, 500)
        ],
    }  # fmt: skip
    known = {"verdict": "sound", "last_clean": 500, "first_corrupt": None, "proven": True}
    told = Told("1", "", "run", result={**result, "state": {**known, "reason": ""}})
    back = go_back(of_session(told, {}), checkpoints(list(range(100, 600, 100))), "/r", None, 500)
    assert (back.step, back.needed, back.grounds) == (500, False, "proven")
    wrong = {**known, "verdict": "corrupt", "last_clean": None, "first_corrupt": 100}
    told = Told("1", "", "run", result={**result, "state": {**wrong, "reason": ""}})
    back = go_back(of_session(told, {}), checkpoints([100, 200]), "/r", None, 500)
    assert (back.step, back.needed) == (None, True)


def test_what_is_damaged_is_not_gone_back_to_though_a_later_finding_is_of_the_state() -> None:
    """One session found the state's break, another one that its last clean file rotted since."""
    answer = Headline("corrupt", "", last_clean=3, first_corrupt=4, source="session 1")
    found = checkpoints([1, 2, 3, 4])
    assert go_back(answer, found, "/r", None, 4).step == 3
    assert go_back(replace(answer, damaged_files=(3,)), found, "/r", None, 4).step == 2
    files = replace(answer, kind="stored bytes", damaged_files=(4,), sound=(), accused=(3,))
    assert go_back(files, found, "/r", None, 4).step == 2


def test_a_band_is_drawn_for_the_state_alone(archive: Callable[..., Path]) -> None:
    folder = archive(rotten=(500,))
    call("run", folder)
    drawn = timeline(report_on(folder))
    assert isinstance(drawn, Figure)
    assert "damaged file" in drawn.body
    assert "fault may lie here" not in drawn.body


def test_a_report_without_a_search_names_what_cannot_be_read(
    archive: Callable[..., Path],
) -> None:
    report = report_on(archive(cut=900))
    assert "The file of step 900 cannot be read: truncated" in report.headline.sentence
    assert json.dumps(content(report)).count("truncated") >= 2
    assert "900" in report.go_back.why


def test_a_run_with_a_guard_is_verified_by_its_trace() -> None:
    answer = Headline("corrupt", "", last_clean=1, first_corrupt=2, source="session 1")
    found = checkpoints([1, 2])
    ((command, _),) = go_back(answer, found, "/r", None, 2).then
    assert command.startswith("sdc-bisect verify /r -- ")
    ((command, _),) = go_back(answer, found, "/r", None, None, guarded=False).then
    assert "--losses LOG --from 1 --to 2" in command
