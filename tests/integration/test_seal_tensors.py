"""A sealed file that changed: which tensors, which bits; and what seals of version 1 still say."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from damaged_archives import distributed, flip_record, pt, state, trainer
from in_process import bisect
from safetensors.torch import load_file, save_file

from forensics.content import Integrity
from forensics.index import index
from forensics.seal_file import own_checksum
from forensics.seals import compare_with_seal, with_seal

NAME = "step-100.safetensors"


def sealed(folder: Path) -> Path:
    file = folder / NAME
    save_file({**state(100), "big": torch.arange(300.0).double(), "n": torch.arange(5)}, file)
    answer = bisect("seal", folder)
    assert (answer.code, answer.out) == (0, f"       100  sealed 1 file in {NAME}.sdc-seal.json\n")
    return file


def flip_in(file: Path, tensor: torch.Tensor, index: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    at = content.index(tensor.numpy().tobytes()) + index * tensor.itemsize + bit // 8
    content[at] ^= 1 << bit % 8
    file.write_bytes(content)


def scanned(folder: Path) -> dict[str, Any]:
    answer = bisect("scan", folder, "--json")
    (row,) = answer.json["checkpoints"]
    return {**row, "code": answer.code}


@pytest.mark.parametrize(("name", "index", "bit"), [("w", 1234, 30), ("big", 17, 3), ("n", 4, 63)])
def test_the_damaged_tensor_its_element_and_bit_are_named(
    tmp_path: Path, name: str, index: int, bit: int
) -> None:
    file = sealed(tmp_path)
    assert scanned(tmp_path)["status"] == "clean"
    flip_in(file, load_file(file)[name], index, bit)
    row = scanned(tmp_path)
    assert (row["code"], row["status"]) == (1, "corrupt")
    assert row["damaged"] == {
        NAME: "not the bytes that were sealed",
        name: f"not the bits that were sealed (element {index}, bits [{bit}])",
    }
    assert set(row["intact"]) == {"w", "b", "big", "n"} - {name}
    assert row["unchecked"] == []


def test_several_elements_are_a_tensor_and_no_place(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    tensor = load_file(file)["w"]
    flip_in(file, tensor, 5, 1)
    flip_in(file, load_file(file)["w"], 900, 2)
    assert scanned(tmp_path)["damaged"]["w"] == "not the bits that were sealed"


def test_a_file_that_was_written_anew_names_what_is_other(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    tensors = load_file(file)
    tensors["big"] = tensors["big"].float()
    tensors["b"] = tensors["b"].view(8, 8)
    tensors["new"] = tensors.pop("n")
    save_file(tensors, file)
    damaged = scanned(tmp_path)["damaged"]
    assert damaged["big"] == "float32 [300], and float64 [300] when it was sealed"
    assert damaged["b"] == "float32 [8, 8], and float32 [64] when it was sealed"
    assert damaged["n"] == "not in the file, and it was when it was sealed"
    assert damaged["new"] == "not in it when it was sealed"
    assert "w" not in damaged


def test_what_is_no_tensor_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / NAME
    save_file(state(100), file, {"note": "aaaa"})
    assert bisect("seal", tmp_path).code == 0
    file.write_bytes(file.read_bytes().replace(b"aaaa", b"aaab"))
    row = scanned(tmp_path)
    assert row["damaged"] == {
        NAME: "not the bytes that were sealed; no tensor in it changed: names, sizes, numbers or "
        "what nothing refers to"
    }
    assert set(row["intact"]) == {"w", "b"}


def test_a_seal_of_version_1_is_read_and_names_the_file(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    place = tmp_path / f"{NAME}.sdc-seal.json"
    content = json.loads(place.read_text())
    assert content["schema"] == "sdc-bisect/seal/2"
    assert set(content["digests"]) == {"w", "b", "big", "n"}
    for key in ("digests", "xxh3", "name", "created"):
        del content[key]
    place.write_text(json.dumps(content | {"schema": "sdc-bisect/seal/1"}))
    assert scanned(tmp_path)["status"] == "clean"
    flip_in(file, load_file(file)["w"], 1, 1)
    assert scanned(tmp_path)["damaged"] == {
        NAME: "not the bytes that were sealed, by a seal of version 1, which has no checksum of "
        "itself; or it was saved anew since it was sealed: then seal it again with --again"
    }


@pytest.mark.parametrize("digest", [["1", "2"], ["x", "1", "2"], ["-1", "1", "2"], "abc", None])
def test_a_digest_that_is_none_is_a_damaged_seal(tmp_path: Path, digest: object) -> None:
    sealed(tmp_path)
    place = tmp_path / f"{NAME}.sdc-seal.json"
    content = json.loads(place.read_text())
    content["digests"]["w"]["digest"] = digest
    place.write_text(json.dumps(content | {"xxh3": own_checksum(content)}))
    row = scanned(tmp_path)
    assert row["status"] != "clean"
    assert "its seal cannot be read" in json.dumps(row)


def test_other_formats_are_sealed_with_their_tensors(tmp_path: Path) -> None:
    pt(tmp_path / _folder(tmp_path, "a"), steps=(100,))
    distributed(tmp_path / _folder(tmp_path, "b"), steps=(100,))
    for place in "ab":
        assert bisect("seal", tmp_path / place).code == 0
    (seal,) = (tmp_path / "a").glob("*.json")
    assert set(json.loads(seal.read_text())["digests"]) == {"w", "b"}
    (seal,) = (tmp_path / "b").glob("*.json")
    assert set(json.loads(seal.read_text())["digests"]) == {"w", "b"}
    flip_record(tmp_path / "a" / "step-100.pt", "data/0")
    row = scanned(tmp_path / "a")
    assert set(row["damaged"]) == {"w", "step-100.pt"}
    assert row["damaged"]["w"].startswith("CRC mismatch")
    assert row["intact"] == ["b"]


def _folder(root: Path, name: str) -> str:
    shutil.rmtree(root / name, ignore_errors=True)
    (root / name).mkdir()
    return name


def test_nan_is_sealed_and_told(tmp_path: Path) -> None:
    save_file({"w": torch.full((8, 8), torch.nan), "v": torch.ones(3)}, tmp_path / NAME)
    answer = bisect("seal", tmp_path)
    assert answer.code == 0
    assert answer.out.rstrip().endswith("; its values are not sound: NaN in w")
    plain = bisect("scan", tmp_path, "--json")
    assert plain.json["checkpoints"][0]["status"] == "clean"
    assert plain.json["not_looked_at"][0].startswith("clean: the bytes that were written")
    looked = bisect("scan", tmp_path, "--json", "--statistics")
    assert (looked.code, looked.json["not_looked_at"]) == (1, [])
    assert looked.json["checkpoints"][0]["reasons"] == ["w: 64 elements are NaN"]


def test_a_file_that_was_added_to_a_sealed_folder_is_not_proven(tmp_path: Path) -> None:
    folder = trainer(tmp_path, (100,)) / "checkpoint-100"
    assert bisect("seal", tmp_path).code == 0
    assert scanned(tmp_path)["status"] == "clean"
    torch.save({"late": torch.ones(3)}, folder / "rng_state_1.pth")
    save_file({"other": torch.ones(3)}, folder / "adapter_model.safetensors")
    (one,) = index(tmp_path)
    compared = compare_with_seal(one)
    assert compared is not None
    assert (compared.holds, dict(compared.changed)) == (False, {})
    found = with_seal(Integrity({}, (), ("w", "new"), 9, {"new": "why"}), replace(
        compared, seal=replace(compared.seal, tensors=("w",))
    ))  # fmt: skip
    assert (found.intact, found.unchecked, found.why) == (("w",), ("new",), {"new": "why"})
