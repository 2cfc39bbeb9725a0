"""What was proven of checkpoints after they were sealed: which it is about, and who reads it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from forensics.index import index
from sdc_guard import load_checkpoint
from sdc_guard.archive.convictions import (
    FILE,
    Conviction,
    add_conviction,
    doubts,
    read_convictions,
)
from sdc_guard.archive.manifest import Manifest, TensorEntry
from sdc_guard.archive.save import save_checkpoint
from sdc_guard.archive.sealing.doubts import doubts_by_name, name_in
from sdc_guard.digest import digest_tensor
from sdc_guard.errors import ArchiveIncomplete
from sdc_guard.store.run_file import Attempt, RunFile

EXACT = Conviction(1, 12, 13, "state at rest, param w", session="0002")
RANGE = Conviction(1, 10, 13, "undetermined")


def archive(run: Path, steps: dict[int, list[int]], attempts: list[tuple[int, int]]) -> Path:
    """Clean checkpoints of `steps` by attempt, in a run with these (attempt, first step)."""
    started = tuple(Attempt(number, first, 0.0) for number, first in attempts)
    run.mkdir(parents=True)
    RunFile("run", 1, (), started).write(run)
    for attempt, saved in steps.items():
        for step in saved:
            payload = {"step": step, "w": torch.ones(2)}
            expected = {"w": TensorEntry.of(digest_tensor(payload["w"]), "param", "w")}
            save_checkpoint(run / "archive", step, attempt, payload, expected, [])
    return run / "archive"


def doubted(folder: Path, conviction: Conviction) -> list[int]:
    attempts = RunFile.read(folder.parent).attempts
    found = []
    for path in sorted(folder.glob("step=*")):
        manifest = Manifest.read(path)
        if doubts(path, manifest, [conviction], attempts):
            found.append(manifest.step)
    return sorted(found)


@pytest.mark.parametrize(
    ("conviction", "expected"),
    [
        (EXACT, [15, 20]),
        (RANGE, [12, 15, 20]),  # it may have happened before 12
        (Conviction(1, None, 13, "x"), [15, 20]),
        (Conviction(2, 12, 13, "x"), []),
        (Conviction(1, 12, 15, "x", checkpoint="step=000015"), [15]),
    ],
)
def test_it_covers_what_may_hold_the_fault(
    tmp_path: Path, conviction: Conviction, expected: list[int]
) -> None:
    folder = archive(tmp_path / "run", {1: [5, 10, 12, 15, 20]}, [(1, 0)])
    assert doubted(folder, conviction) == expected


@pytest.mark.parametrize(
    ("resumed_at", "conviction", "expected"),
    [
        (16, EXACT, [15, 20]),  # went on from what is wrong
        (13, EXACT, []),  # began again from before; the first attempt's 15 is superseded
        (13, RANGE, [12, 20]),  # the state after step 12 may be wrong already
        (11, RANGE, []),
    ],
)
def test_a_restart_from_before_ends_it(
    tmp_path: Path, resumed_at: int, conviction: Conviction, expected: list[int]
) -> None:
    first = [step for step in (5, 10, 12, 15) if step < resumed_at]
    attempts = [(1, 0), (2, resumed_at)]
    folder = archive(tmp_path / "run", {1: first, 2: [20]}, attempts)
    assert doubted(folder, conviction) == expected


def test_the_newest_clean_one_is_one_before_it_and_the_manifests_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = archive(tmp_path / "run", {1: [5, 10, 15, 20]}, [(1, 0)])
    manifests = {path: path.read_bytes() for path in folder.glob("*/manifest.json")}
    assert load_checkpoint(tmp_path / "run")["step"] == 20
    assert add_conviction(folder, EXACT)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        assert load_checkpoint(tmp_path / "run")["step"] == 10
        assert load_checkpoint(folder / "step=000015")["step"] == 15
    text = "a replay proved step 13 wrong: state at rest, param w (bisect/0002)"
    assert f"passed over step 20, {text}" in caplog.text
    assert f"checkpoint of step 15 is suspect: {text}" in caplog.text
    found = {one.step: (one.status, one.reasons) for one in index(tmp_path / "run")}
    assert found[10] == ("clean", ())
    assert found[15] == ("suspect", (text,))
    assert manifests == {path: path.read_bytes() for path in manifests}
    (folder / FILE).unlink()
    assert load_checkpoint(tmp_path / "run")["step"] == 20


def test_the_same_is_noted_once_and_damaged_lines_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = archive(tmp_path / "run", {1: [15]}, [(1, 0)])
    assert add_conviction(folder, EXACT)
    assert not add_conviction(folder, Conviction(1, 12, 13, "said otherwise"))
    with (folder / FILE).open("a") as file:
        file.write('{"attempt": "1"}\n[]\n{"attempt": 1, "first_corr')
    assert add_conviction(folder, RANGE)  # on a line of its own
    assert read_convictions(folder) == [EXACT, RANGE]
    assert "line 2 is damaged" in caplog.text
    assert json.loads((folder / FILE).read_text().splitlines()[0])["first_corrupt"] == 13
    with pytest.raises(ArchiveIncomplete, match="no clean checkpoint among 1"):
        load_checkpoint(tmp_path / "run")


def test_one_of_a_path_elsewhere_holds_for_its_own_attempt_alone(tmp_path: Path) -> None:
    run, path = tmp_path / "run", tmp_path / "saved" / "checkpoint-4"
    conviction = Conviction(1, None, 4, "x", checkpoint=name_in(run, path))
    of_attempt = {
        attempt: Manifest(4, 4, attempt, "clean", (), "", 0, {}, 0.0) for attempt in (1, 2)
    }
    found = {
        attempt: doubts_by_name(run, path, manifest, [conviction], ())
        for attempt, manifest in of_attempt.items()
    }
    # the path is the same, but a later attempt wrote what is there
    assert found == {1: [conviction.text()], 2: []}
