"""A damaged file is never convicted for its state, and a word of the user's is never a proof."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from session_archives import Answer, call, file_of

STEPS = range(10, 170, 10)
NAN = b"\x00\x00\xc0\x7f"
MARK = 0.8125  # exact in float32, and nowhere else in a file
MARKED = b"\x00\x00\x50\x3f"


def archive(folder: Path, wrong_from: int = 10**9) -> Path:
    """Weights that drift; from a step on one of them is NaN before it is saved."""
    folder.mkdir()
    start = torch.linspace(-0.5, 0.5, 64)
    for step in STEPS:
        weight = start + step * 1e-4
        weight[5] = MARK if step < wrong_from else float("nan")
        weight[6] = MARK
        torch.save({"step": step, "weight": weight}, file_of(folder, step))
    return folder


def rot(folder: Path, *steps: int) -> None:
    """Bytes that change in the file: one element is NaN there, and was not when it was saved."""
    for step in steps:
        content = file_of(folder, step).read_bytes()
        assert MARKED in content
        file_of(folder, step).write_bytes(content.replace(MARKED, NAN, 1))


def run(folder: Path, *options: str) -> Answer:
    return call("run", folder, *options, "--json")


def words(folder: Path, *options: str) -> str:
    return call("run", folder, *options).out


@pytest.mark.parametrize("options", [(), ("--scan",), ("--bad", "150")])
def test_damaged_files_are_not_convicted_for_their_state(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = archive(tmp_path / "archive")
    rot(folder, *range(90, 170, 10))
    found = run(folder, *options).json
    assert (found["last_clean"], found["first_corrupt"], found["proven"]) == (80, 90, True)
    assert found["state"]["verdict"] == "unknown"
    assert found["state"]["first_corrupt"] is None
    assert {*found["damaged_files"]} <= {*range(90, 170, 10)}
    assert "went wrong" not in words(folder, *options)


def test_the_state_is_found_behind_a_damaged_file_that_nobody_read(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", wrong_from=100)
    rot(folder, 20, 90, 110)  # checksums stop at 20, and the others are met by their values
    found = run(folder).json
    assert (found["first_corrupt"], found["exact"]) == (20, True)
    state = found["state"]
    assert (state["verdict"], state["last_clean"], state["first_corrupt"]) == ("corrupt", 80, 100)


def test_a_scan_lists_changes_of_files_and_of_the_state(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", wrong_from=100)
    rot(folder, 30, 100)
    found = run(folder, "--scan").json
    told = [(one["kind"], one["from"], one["to"], *one["verdicts"]) for one in found["transitions"]]
    assert sorted(told) == [
        ("file", 20, 30, "clean", "corrupt"),
        ("file", 30, 40, "corrupt", "clean"),
        ("file", 90, 100, "clean", "corrupt"),
        ("file", 100, 110, "corrupt", "clean"),
        ("state", 90, 110, "clean", "corrupt"),
    ]
    text = words(folder, "--scan")
    assert "state: from clean to corrupt: (90, 110]" in text
    assert "--scan" not in text


def test_a_scan_does_not_name_itself_where_one_cannot_be_read(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", wrong_from=100)
    file_of(folder, 40).write_bytes(b"")
    assert "--scan" not in words(folder, "--scan")
    assert run(folder, "--scan").code == run(folder).code == 1


@pytest.mark.parametrize("wrong_from", [10**9, 100])
def test_trusted_ends_of_sound_files_accuse_no_file(tmp_path: Path, wrong_from: int) -> None:
    folder = archive(tmp_path / "archive", wrong_from)
    answer, text = run(folder, "--trust-ends"), words(folder, "--trust-ends")
    found = answer.json
    assert (found["damaged_files"], found["proven"]) == ([], False)
    assert 160 not in [probe["step"] for probe in found["probes"]]
    if wrong_from == 100:
        assert (answer.code, found["last_clean"], found["first_corrupt"]) == (1, 90, 100)
        return
    assert (answer.code, found["last_clean"], found["first_corrupt"]) == (3, 150, 160)
    assert text.startswith("Checkpoint 160 is corrupt by your word, no judge looked at it")


def test_trusted_ends_and_a_damaged_file_between_them(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    rot(folder, 70)
    found = run(folder, "--trust-ends").json
    assert found["first_corrupt"] == 70
    assert found["damaged_files"] == [70]
    assert found["state"]["verdict"] == "unknown"
    assert "your word" not in words(folder, "--trust-ends")


def test_a_bad_end_of_sound_bytes_is_judged_by_its_values(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", wrong_from=90)
    found = run(folder, "--bad", "160")
    assert (found.code, found.json["last_clean"], found.json["first_corrupt"]) == (1, 80, 90)
    refused = run(folder, "--oracle", "integrity", "--bad", "160")
    assert refused.code == 2  # asked for by name it does say so


def test_a_bad_end_that_no_judge_confirms_is_told_and_ends_nothing(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    assert call("start", folder, "--bad", "160").code == 0
    refused = call("run", folder)
    assert refused.code == 2
    assert "--bad 160 is clean by this judge" in refused.err
    told = call("status", folder)
    assert (told.code, told.err) == (0, "")
    undone = call("undo", folder, "--json")
    assert undone.code == 0
    assert "taken back" in undone.json["notes"][0]
    assert call("status", folder).code == 0


def test_what_values_judged_is_not_called_skipped(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", wrong_from=100)
    for step in (10, 90, 100, 160):  # as torch wrote them before 1.6: no checksum
        content = torch.load(file_of(folder, step), weights_only=True)
        torch.save(content, file_of(folder, step), _use_new_zipfile_serialization=False)
    file_of(folder, 30).write_bytes(b"")
    found = run(folder, "--scan").json
    assert (found["last_clean"], found["first_corrupt"], found["skipped"]) == (90, 100, [30])


def test_a_damaged_file_between_ends_without_checksums_is_found(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    for step in (10, 160):
        content = torch.load(file_of(folder, step), weights_only=True)
        torch.save(content, file_of(folder, step), _use_new_zipfile_serialization=False)
    rot(folder, 80, 90)
    found = run(folder).json
    assert (found["first_corrupt"], found["class"]) == (80, "stored bytes")
    assert found["state"]["first_corrupt"] is None


def test_it_counts_the_files_that_checksums_have_not_seen(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    rot(folder, 20, 150, 160)
    found = run(folder).json
    read = {one["step"] for one in found["probes"] if one["oracle"] == "integrity"}
    assert 150 in read
    assert found["damaged_files"] == [20, 150, 160]
    (line,) = [one for one in found["evidence"] if "not compared with their checksums" in one]
    assert line.startswith(f"{len(STEPS) - len(read)} files were ")


def test_what_the_user_judged_is_of_the_state_and_no_damaged_file(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    rot(folder, 120)
    assert call("start", folder).code == 0
    assert call("bad", folder, "80").code == 0
    found = run(folder).json
    assert (found["first_corrupt"], found["class"]) == (120, "stored bytes")
    assert (found["last_clean"], found["proven"], found["damaged_files"]) == (110, True, [120])
    state = found["state"]
    assert (state["verdict"], state["proven"]) == ("corrupt", False)
    assert (state["last_clean"], state["first_corrupt"]) == (70, 80)


def test_what_was_judged_before_a_file_rotted_takes_no_proof_back(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive")
    assert call("start", folder).code == 0
    assert run(folder).code == 0
    rot(folder, 160)
    found = run(folder).json
    assert (found["last_clean"], found["first_corrupt"]) == (150, 160)
    assert (found["proven"], found["class"]) == (True, "stored bytes")
