"""A seal is a file, too: damaged, moved, of another file, or none at all."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import bisect

from sdc_guard.archive.save import save_checkpoint

SUFFIX = ".sdc-seal.json"


def made(folder: Path, *steps: int, seal: bool = True) -> None:
    for step in steps:
        torch.manual_seed(step)
        state = {"step": step, "model": {"w": torch.randn(8, 8), "b": torch.randn(8)}}
        torch.save(state, folder / f"step-{step}.pt")
    if seal:
        assert bisect("seal", folder).code == 0


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bisect("scan", folder, "--json").json["checkpoints"]
    return found


def told(row: dict[str, Any]) -> str:
    return json.dumps([row["reasons"], row["notes"], row["damaged"], row["unchecked_why"]])


def as_version_1(place: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(place.read_text())
    for key in ("digests", "xxh3", "name", "created"):
        del content[key]
    content["schema"] = "sdc-bisect/seal/1"
    place.write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("version", [1, 2])
def test_no_flipped_bit_of_a_seal_convicts_or_moves_a_sound_file(
    tmp_path: Path, version: int
) -> None:
    made(tmp_path, 2)
    place = tmp_path / f"step-2.pt{SUFFIX}"
    if version == 1:
        as_version_1(place)
    before = place.read_bytes()
    chosen = random.Random(7)
    for at in [before.index(b'"step": 2') + 8, *chosen.sample(range(len(before)), 60)]:
        bit = chosen.randrange(8)
        changed = bytearray(before)
        changed[at] ^= 1 << bit
        place.write_bytes(changed)
        (row,) = rows(tmp_path)
        assert (row["step"], row["damaged"]) == (2, {}), (at, bit, row)
        assert row["status"] in ("clean", "untested"), (at, bit)


@pytest.mark.parametrize(
    ("key", "flip"), [("files", 0), ("files", 1), ("digests", 0), ("step", 0), ("name", 0)]
)
def test_a_seal_that_does_not_fit_its_own_checksum_is_told(
    tmp_path: Path, key: str, flip: int
) -> None:
    made(tmp_path, 200)
    place = tmp_path / f"step-200.pt{SUFFIX}"
    content = json.loads(place.read_text())
    if key == "files":
        (entry,) = content["files"].values()
        entry[flip] = entry[flip] ^ 1 if flip == 0 else "0" * 32
    elif key == "digests":
        content["digests"]["model.w"]["digest"][0] = "0" * 16
    else:
        content[key] = 600 if key == "step" else "step-201.pt"
    place.write_text(json.dumps(content))
    (row,) = rows(tmp_path)
    assert (row["step"], row["status"]) == (200, "untested")
    assert "does not fit its own checksum" in told(row)
    assert bisect("seal", tmp_path).code == 5
    assert bisect("seal", tmp_path, "--again").code == 0
    assert rows(tmp_path)[0]["status"] == "clean"


def test_a_wrong_step_in_a_seal_moves_no_proof(tmp_path: Path) -> None:
    made(tmp_path, 100, 200, 300)
    place = tmp_path / f"step-200.pt{SUFFIX}"
    place.write_text(place.read_text().replace('"step": 200', '"step": 600'))
    for step in (200, 300):
        file = tmp_path / f"step-{step}.pt"
        content = bytearray(file.read_bytes())
        content[content.index(b"data/0") + 80] ^= 1
        file.write_bytes(content)
    assert [row["step"] for row in rows(tmp_path)] == [100, 200, 300]


def test_a_file_that_was_renamed_with_its_seal_is_what_was_sealed(tmp_path: Path) -> None:
    made(tmp_path, 3)
    for end in ("", SUFFIX):
        (tmp_path / f"step-3.pt{end}").rename(tmp_path / f"final-3.pt{end}")
    assert rows(tmp_path)[0]["status"] == "clean"


def test_a_seal_of_another_file_says_nothing(tmp_path: Path) -> None:
    made(tmp_path, 2, 3)
    shutil.copy(tmp_path / f"step-2.pt{SUFFIX}", tmp_path / f"step-3.pt{SUFFIX}")
    two, three = rows(tmp_path)
    assert (two["step"], two["status"]) == (2, "clean")
    assert (three["step"], three["status"], three["damaged"]) == (3, "untested", {})
    assert "of another file (step-2.pt)" in told(three)


def test_a_file_that_was_saved_anew_is_told_how_to_be_sealed(tmp_path: Path) -> None:
    made(tmp_path, 2)
    torch.save({"step": 2, "model": {"w": torch.zeros(8, 8)}}, tmp_path / "step-2.pt")
    (row,) = rows(tmp_path)
    assert row["status"] == "corrupt"
    assert "or it was saved anew since it was sealed (seal of 20" in told(row)
    assert "--again" in told(row)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "large"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    made(tmp_path, 1, seal=False)
    place = tmp_path / f"step-1.pt{SUFFIX}"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "large":
        place.touch()
        os.truncate(place, 1 << 36)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    (row,) = rows(tmp_path)
    assert (row["status"], row["damaged"]) == ("untested", {})
    assert "its seal is" in told(row)
    assert bisect("index", tmp_path).code == 0
    assert bisect("doctor", tmp_path).code == 0
    assert bisect("seal", tmp_path).code == 5
    assert bisect("seal", tmp_path, "--again").code == (5 if kind == "folder" else 0)


@pytest.mark.parametrize("what", ["xxh3", "bytes"])
def test_a_flipped_bit_in_a_manifest_convicts_no_sound_file(tmp_path: Path, what: str) -> None:
    folder, _ = save_checkpoint(tmp_path, 1, 1, {"w": torch.arange(9.0), "step": 1}, {}, [])
    place = folder / "manifest.json"
    content = json.loads(place.read_text())
    del content["own_xxh3"]  # as before there was one
    value = content[what]
    content[what] = f"{int(value[0], 16) ^ 1:x}{value[1:]}" if what == "xxh3" else value ^ 1024
    if what == "bytes" and content[what] > value:
        content[what] = value - 1
    place.write_text(json.dumps(content))
    (row,) = rows(tmp_path)
    assert row["status"] != "corrupt"
    assert row["damaged"] == {}
    assert "it changed, and not the file" in told(row)
    state = folder / "state.pt"
    changed = bytearray(state.read_bytes())
    changed[-30] ^= 1  # of the directory, in no tensor
    state.write_bytes(changed)
    (row,) = rows(tmp_path)
    assert row["status"] == "corrupt"
    assert "it changed, and not the file" not in told(row)
