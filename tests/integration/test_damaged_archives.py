"""Each damaged input is answered in a line, with its exit code, and nothing else goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import damaged_archives as made
import pytest
import torch
from in_process import bisect


@dataclass(frozen=True)
class Row:
    """A damaged archive.

    Attributes:
        name: of the accident.
        make: makes it in an empty folder.
        code: that `scan` ends with.
        says: what the one line of the step in question says.
        step: in question.
    """

    name: str
    make: Callable[[Path], object]
    code: int
    step: int
    says: tuple[str, ...]


ROWS = (
    Row("A01 bad CRC", made.bad_crc, 1, 300, ("corrupt", "w: CRC mismatch in record data/0")),
    Row("A03 hole of zeros", made.hole, 1, 300, ("corrupt", "w: CRC mismatch")),
    Row("A04 10 bytes", made.cut_pt(10), 5, 300, ("unreadable", "truncated", "10 bytes")),
    Row("A04 half", made.cut_pt(0.5), 5, 300, ("unreadable", "truncated", "bytes")),
    Row("A04 last byte", made.cut_pt(-1), 5, 300, ("unreadable", "truncated", "bytes")),
    Row("A04 empty", made.cut_pt(0), 5, 300, ("unreadable", "empty (0 bytes)")),
    Row("A05 killed save", made.partial_ckpt, 5, 300, ("unreadable", "truncated")),
    Row("A07 no trainer_state", made.no_trainer_state, 0, 300,
        ("untested", "checkpoint-300 incomplete: trainer_state.json missing", "in its name")),
    Row("A08 4 bytes", made.cut_safetensors(4), 5, 300, ("unreadable", "4", "bytes")),
    Row("A08 half", made.cut_safetensors(0.5), 5, 300, ("unreadable", "bytes")),
    Row("A08 last byte", made.cut_safetensors(-1), 5, 300, ("unreadable", "bytes")),
    Row("A09 trailing bytes", made.trailing, 0, 300,
        ("untested", "4 trailing bytes; tensors intact")),
    Row("A10 no tensors", made.no_tensors, 5, 7, ("unreadable", "no tensors in file")),
    Row("A12 no .metadata", made.no_metadata, 5, 300,
        ("unreadable", "DCP directory incomplete: .metadata missing; found __0_0.distcp")),
    Row("A13 empty shard", made.shard(lambda file: made.cut(file, 0)), 5, 300,
        ("unreadable", "__0_1.distcp", "held")),
    Row("A13 half a shard", made.shard(lambda file: made.cut(file, 0.5)), 5, 300,
        ("unreadable", "__0_1.distcp", "held")),
    Row("A13 no shard", made.shard(lambda file: file.unlink()), 5, 300,
        ("unreadable", "__0_1.distcp", "held")),
    Row("A15 two numbers", made.two_numbers, 0, 799, ("800", "799")),
    Row("A16 ranks disagree", made.ranks, 1, 500,
        ("suspect", "ranks disagree on global_steps: 500", "0 in mp_rank_01")),
    Row("A18 disk full", made.disk_full, 5, 300,
        ("unreadable", "much smaller than its neighbours", "disk full?")),
    Row("A19 pointer .pt", made.pointer("step-7.pt"), 5, 7, ("Git LFS pointer", "12,965 bytes")),
    Row("A19 pointer .safetensors", made.pointer("step-7.safetensors"), 5, 7,
        ("Git LFS pointer; real content (12,965 bytes) not downloaded",)),
    Row("A19 pointer .json", made.pointer("step-7/model.safetensors.index.json"), 5, 7,
        ("Git LFS pointer; real content (12,965 bytes) not downloaded",)),
    Row("A20 another program's", made.another_state, 0, 300,
        ("Not a Hugging Face trainer_state: log_history missing",)),
    Row("A21 a class", made.foreign_objects, 0, 300, ("clean", "not evaluated: config")),
    Row("A21 numpy", made.foreign_objects, 0, 600, ("not evaluated: rng_state.numpy",)),
    Row("A22 missing shard", made.missing_shard, 5, 7,
        ("2 of 3 shards present; missing model-00002-of-00003",)),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_scan_answers_in_one_line(row: Row, tmp_path: Path) -> None:
    row.make(tmp_path)
    answer = bisect("scan", tmp_path, "--jobs", 1)
    assert answer.code == row.code, answer.out
    assert answer.err == ""
    (line,) = [x for x in answer.out.splitlines() if x.split()[:1] == [str(row.step)]]
    for text in row.says:
        assert text in line
    assert "Traceback" not in answer.out
    assert "Error" not in line


def test_the_damaged_and_the_intact_tensors_are_told_apart(tmp_path: Path) -> None:
    made.hole(tmp_path)
    answer = bisect("scan", tmp_path, "--json")
    assert answer.code == 1
    assert answer.json["schema"] == {"name": "sdc-bisect.scan", "version": 1}
    rows = {row["step"]: row for row in answer.json["checkpoints"]}
    assert set(rows[300]["damaged"]) == {"w"}
    assert rows[300]["intact"] == ["b"]
    assert {rows[step]["status"] for step in (100, 200, 400, 500)} == {"clean"}
    assert answer.json["not_checkable"] == []


def test_what_has_no_checksum_is_never_called_clean(tmp_path: Path) -> None:
    made.safetensors(tmp_path)
    answer = bisect("scan", tmp_path, "--json")
    assert answer.code == 0
    assert {row["status"] for row in answer.json["checkpoints"]} == {"untested"}
    assert answer.json["not_checkable"] == [
        "5 checkpoints: no checksum in safetensors: only its structure was checked"
    ]


@pytest.mark.parametrize("make", [made.bad_crc, made.hole])
def test_a_rotten_file_is_located_and_its_tensor_named(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path)
    found = bisect("run", tmp_path, "--json")
    assert found.code == 1
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (200, 300)
    assert found.json["proven"]
    assert found.json["exact"]
    assert found.json["class"] == "stored bytes"
    assert found.json["evidence"][0].startswith("w: CRC mismatch in record data/0")


def test_a_gap_makes_the_answer_a_range(tmp_path: Path) -> None:
    made.gap(tmp_path)
    found = bisect("run", tmp_path, "--json")
    assert found.code == 3
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (200, 400)
    assert not found.json["exact"]
    assert any("no checkpoint between 200 and 400" in line for line in found.json["evidence"])
    assert "no checkpoint at 300" in bisect("index", tmp_path).out


def test_the_same_step_is_there_once(tmp_path: Path) -> None:
    made.partial_ckpt(tmp_path)
    rows = bisect("index", tmp_path, "--json").json["checkpoints"]
    assert [row["step"] for row in rows] == list(made.STEPS)
    assert "last.ckpt" in rows[-1]["notes"][0]


@pytest.mark.parametrize("keep", [10, 0.5, -1, 0])
def test_what_is_cut_off_is_skipped_and_not_corrupt(keep: float, tmp_path: Path) -> None:
    made.cut_pt(keep)(tmp_path)
    found = bisect("run", tmp_path, "--json", "--scan")
    assert found.code == 3
    assert [one["step"] for one in found.json["unreadable"]] == [300]
    assert found.json["skipped"] == [300]
    assert found.json["first_corrupt"] is None


def test_steps_are_numbers_whatever_the_times(tmp_path: Path) -> None:
    made.shuffled_times(tmp_path)
    found = bisect("run", tmp_path, "--json")
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (950, 1000)
    assert not found.json["proven"]


def test_trailing_bytes_do_not_keep_it_from_being_judged(tmp_path: Path) -> None:
    made.trailing(tmp_path)
    for step in (300, 400, 500):
        made.flip(tmp_path / f"step-{step}.safetensors", made.state(step)["w"])
    found = bisect("run", tmp_path, "--json")
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (200, 300)
    assert found.json["skipped"] == []


def test_tied_weights_are_equal_in_two_formats(tmp_path: Path) -> None:
    made.tied(tmp_path)
    answer = bisect("diff", tmp_path / "tied-1.safetensors", tmp_path / "tied-1.pt")
    assert answer.code == 0
    assert answer.out == "no difference: 1 tensor is equal, bit for bit\n"


def test_a_file_that_is_no_checkpoint_is_told_so(tmp_path: Path) -> None:
    made.pointer("notes.json")(tmp_path)
    answer = bisect("index", tmp_path / "notes.json")
    assert answer.code == 5
    assert "Git LFS pointer; real content (12,965 bytes) not downloaded" in answer.err


@pytest.mark.parametrize("between", [False, True])
def test_a_damaged_file_beside_weights_without_a_checksum_is_the_answer(
    tmp_path: Path, between: bool
) -> None:
    made.trainer(tmp_path)
    rotten = 300 if between else 500
    moment = torch.linspace(0.1, 0.2, 64)
    for step in made.STEPS:
        stored = {"state": {0: {"exp_avg": moment, "step": step}}, "param_groups": []}
        torch.save(stored, tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    made.flip(tmp_path / f"checkpoint-{rotten}" / "optimizer.pt", moment, 0x01)
    found = bisect("run", tmp_path, "--scan", "--json")
    assert (found.code, found.json["damaged_files"]) == (3, [rotten])
    assert (found.json["first_corrupt"], found.json["class"]) == (rotten, "stored bytes")
    assert found.json["exact"] is False
    assert found.json["state"]["verdict"] == "unknown"
    assert found.json["state"]["last_clean"] == (500 if between else 400)
    assert "CRC mismatch" in found.json["evidence"][0]
    words = bisect("run", tmp_path, "--scan").out.splitlines()[0]
    assert f"checkpoint {rotten} is" in words
    assert "do not restore from it" in words
    told = bisect("report", tmp_path, "--format", "json")
    assert f"Do not use the file of step {rotten}" in told.out
