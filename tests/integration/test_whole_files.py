"""A checksum of a whole file proves what no structure is left to show: any bit, and a cut."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from whole_files import SAVERS, STEPS, archive, distributed, flipped, guarded

from forensics.cli import main
from forensics.index import index
from forensics.oracles.integrity import IntegrityOracle
from forensics.scanning import scanned
from forensics.spacing import gaps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guarded(tmp_path_factory.mktemp("guard") / "run")


def call(*arguments: object) -> tuple[int, Any]:
    """sdc-bisect with --json: its exit code, and what it printed."""
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def first_corrupt(path: Path, kept: Path) -> tuple[int, Any, Any]:
    shutil.rmtree(kept, ignore_errors=True)  # of the search before
    code, answer = call("run", path)
    return code, answer["first_corrupt"], answer["proven"]


def statuses(path: Path) -> dict[int, str]:
    """Steps that a scan does not call clean."""
    found = {one.checkpoint.step: one.status for one in scanned(index(path))}
    assert tuple(found) == STEPS
    return {step: status for step, status in found.items() if status != "clean"}


def test_a_flipped_bit_anywhere_in_a_guards_file_is_found(run: Path, seed: int) -> None:
    draw = random.Random(seed)
    assert statuses(run) == {}
    for _ in range(12):
        step = draw.choice(STEPS)
        with flipped(run / "archive" / f"step={step:06d}" / "state.pt", draw) as where:
            assert first_corrupt(run, run / "bisect") == (1, step, True), where
            assert statuses(run) == {step: "corrupt"}, where


@pytest.mark.parametrize("kind", SAVERS)
def test_a_flipped_bit_anywhere_in_a_sealed_one_is_found(
    tmp_path: Path, kind: str, seed: int
) -> None:
    draw = random.Random(seed)
    folder = archive(tmp_path / kind, kind)
    assert call("seal", folder)[0] == 0
    assert statuses(folder) == {}
    for _ in range(12):
        step = draw.choice(STEPS)
        one = next(path for path in index(folder) if path.step == step).path
        with flipped(one, draw) as where:
            assert first_corrupt(folder, folder / ".sdc-bisect") == (1, step, True), where
            assert statuses(folder) == {step: "corrupt"}, where


@pytest.mark.parametrize("kept", [0, 1, 700, -1])
def test_a_cut_file_is_corrupt_and_says_how_much_is_there(
    run: Path, tmp_path: Path, kept: int
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "bisect", ignore_errors=True)
    path = copy / "archive" / "step=000050" / "state.pt"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:kept])
    left = path.stat().st_size
    assert first_corrupt(copy, copy / "bisect") == (1, 50, True)
    (one,) = (one for one in scanned(index(copy)) if one.status != "clean")
    assert (one.checkpoint.step, one.status) == (50, "corrupt")
    assert f"({left:,} of {size:,} bytes)" in one.reasons[0]


def test_a_cut_sealed_file_is_corrupt_and_says_how_much_is_there(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", "safetensors")
    call("seal", folder)
    path = folder / "step-70.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    (one,) = (one for one in scanned(index(folder)) if one.status != "clean")
    assert (one.checkpoint.step, one.status) == (70, "corrupt")
    assert f"{size - 5:,} of {size:,} bytes that were sealed" in one.reasons[0]
    (folder / "step-80.safetensors").write_bytes(
        (folder / "step-80.safetensors").read_bytes() + b"0"
    )
    assert statuses(folder) == {70: "corrupt", 80: "corrupt"}


def test_a_damaged_seal_proves_nothing_and_is_told(tmp_path: Path) -> None:
    folder = archive(tmp_path / "archive", "torch")
    call("seal", folder)
    seal = folder / "step-70.pt.sdc-seal.json"
    seal.write_text(seal.read_text()[:-30])
    (one,) = (one for one in scanned(index(folder)) if one.status != "clean")
    assert (one.checkpoint.step, one.status) == (70, "untested")
    assert "its seal cannot be read" in "".join(one.reasons)
    content = json.loads((folder / "step-80.pt.sdc-seal.json").read_text())
    (folder / "step-80.pt.sdc-seal.json").write_text(json.dumps({**content, "step": 10**400}))
    assert statuses(folder) == {70: "untested", 80: "untested"}


def test_a_file_more_than_was_sealed_is_looked_at(tmp_path: Path) -> None:
    distributed(tmp_path, 7)
    call("seal", tmp_path)
    (one,) = scanned(index(tmp_path))
    assert (one.status, one.unchecked) == ("clean", ())
    (tmp_path / "step-7" / "new").write_text("x")
    (one,) = scanned(index(tmp_path))
    assert one.status == "clean"
    assert sorted(one.intact) == [".metadata", "model.a.w", "model.b", "w"]


def test_no_flipped_bit_of_metadata_is_called_clean(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    distributed(tmp_path, 100)
    (sound,) = scanned(index(tmp_path))
    assert (sound.status, sound.unchecked) == ("untested", (".metadata",))
    assert sorted(sound.intact) == ["model.a.w", "model.b", "w"]
    kinds = set()
    for _ in range(150):
        with flipped(tmp_path / "step-100" / ".metadata", draw) as where:
            (one,) = scanned(index(tmp_path))
        assert one.status in ("corrupt", "untested"), where
        if one.status == "untested" and one.readable:
            assert ".metadata" in one.unchecked, where
            assert ".metadata" in "".join(one.reasons), where
        kinds.add((one.status, one.readable))
    assert kinds == {("corrupt", True), ("untested", True), ("untested", False)}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"model.a.w", b"model.c.w", "it has two names for one tensor: model.c.w, model.a.w"),
        (b"model.a.w", b"model.a.u", "it has two names for one tensor: model.a.u, model.a.w"),
        (b"planner_data", b"planner_dati", "it has a part planner_dati, which DCP does not"),
        (b"StorageMeta", b"StorageEeta", "StorageEeta, which there is not"),
    ],
)
def test_metadata_that_contradicts_itself_is_corrupt(
    tmp_path: Path, old: bytes, new: bytes, what: str
) -> None:
    distributed(tmp_path, 7)
    path = tmp_path / "step-7" / ".metadata"
    content = path.read_bytes()
    place = content.index(old)
    if old.startswith(b"StorageMeta"):
        place = content.rindex(old)
    path.write_bytes(content[:place] + new + content[place + len(old) :])
    (one,) = index(tmp_path)
    judgement = IntegrityOracle().judge(one)
    assert judgement.verdict == "corrupt"
    assert what in judgement.reason


def test_a_tensor_that_repeats_its_bytes_is_untested_and_its_checksum_counts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step-1.pt"
    many = torch.full((1,), 3.25).expand(4096, 4096)
    torch.save({"many": many, "w": torch.ones(3), "step": 1}, path)
    (one,) = scanned(index(tmp_path))
    assert (one.status, one.damaged, one.intact) == ("untested", {}, ("w",))
    assert one.unchecked == ("many",)
    assert "many: it repeats 4 stored bytes into 67,108,864, not expanded" in "".join(one.reasons)
    content = path.read_bytes()
    value = many[0, :1].contiguous().numpy().tobytes()
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, bytes(4)))
    (one,) = scanned(index(tmp_path))
    assert (one.status, list(one.damaged)) == ("corrupt", ["many"])
    assert "CRC mismatch" in one.damaged["many"]


def test_a_legacy_tensor_that_repeats_its_bytes_is_not_damaged(tmp_path: Path) -> None:
    content = {"many": torch.zeros(1).expand(4096, 4096), "step": 1}
    torch.save(content, tmp_path / "step-1.pt", _use_new_zipfile_serialization=False)
    (one,) = scanned(index(tmp_path))
    assert (one.status, one.damaged, one.unchecked) == ("untested", {}, ("many",))


def test_a_manifest_without_the_whole_files_checksum_says_so(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "bisect", ignore_errors=True)
    for path in copy.glob("archive/*/manifest.json"):
        content = json.loads(path.read_text())
        del content["own_xxh3"]
        path.write_text(json.dumps({**content, "xxh3": None}))
    found = index(copy)
    assert {one.readable for one in found} == {True}
    assert all("no checksum of the whole file" in "".join(one.notes) for one in found)
    assert statuses(copy) == {}
    done = CliRunner().invoke(main, ["run", str(copy)])
    assert "no checksum of the whole file" in done.stderr


@pytest.mark.parametrize("step", [10**400, 2**63, -1, True, 1.5])
def test_a_manifest_of_no_step_is_one_line(run: Path, tmp_path: Path, step: Any) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "bisect", ignore_errors=True)
    path = copy / "archive" / "step=000050" / "manifest.json"
    content = json.loads(path.read_text())
    del content["own_xxh3"]
    path.write_text(json.dumps({**content, "step": step}))
    for command in ("index", "scan", "run"):
        done = CliRunner().invoke(main, [command, str(copy)])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "Traceback" not in done.stderr
    (one,) = (one for one in index(copy) if not one.readable)
    assert one.step == 50
    assert "manifest.json cannot be read" in one.reasons[0]
    assert "\n" not in one.reasons[0]
    (copy / "archive" / "step=000050").rename(copy / "archive" / f"step={10**100}")
    assert [one.step for one in index(copy) if not one.readable] == [0]


def test_names_and_steps_too_large_for_any_training(tmp_path: Path) -> None:
    for name in ("step-10", "step-20", "step-30", f"step-{10**60}", f"step-{10**18 - 1}"):
        torch.save({"w": torch.ones(2)}, tmp_path / f"{name}.pt")
    torch.save({"w": torch.ones(2), "step": 10**400}, tmp_path / "step-40.pt")
    found = index(tmp_path)
    assert [one.step for one in found] == [0, 10, 20, 30, 40, 10**18 - 1]
    for command in ("index", "scan", "run"):
        done = CliRunner().invoke(main, [command, str(tmp_path)])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "Traceback" not in done.stderr


def test_gaps_of_any_size_are_told() -> None:
    huge = 10**400
    assert gaps([10, 20, 30, 40, huge]) == [
        f"no checkpoint at 50, 60, 70 ... {huge - 10}; they are usually 10 apart"
    ]
    assert gaps([10, 20, 30, 60]) == ["no checkpoint at 40, 50; they are usually 10 apart"]
    assert gaps([10, 20, 30, 70]) == ["no checkpoint at 40, 50, 60; they are usually 10 apart"]
    assert gaps([10, 20, 30, 80]) == [
        "no checkpoint at 40, 50, 60 ... 70; they are usually 10 apart"
    ]
