"""manifest.json: round trip, and one kind of error for a damaged one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdc_guard.archive.manifest import (
    FILE,
    SCHEMA,
    SHARDED,
    SHARDED_SCHEMA,
    FileEntry,
    Manifest,
    TensorEntry,
)
from sdc_guard.digest import Digest
from sdc_guard.errors import CheckpointUnreadable


def manifest() -> Manifest:
    top = 2**64 - 1
    tensors = {
        "model.w": TensorEntry.of(Digest(top, 0, 2**63), "param", "w"),
        "rng": TensorEntry.of(Digest(1, 2, 3)),
    }
    return Manifest(7, 6, 2, "suspect", ("one", "twö"), "state.pt", 2**40, tensors, 12.5)


def of_several() -> Manifest:
    entry = replace(
        TensorEntry.of(Digest(1, 2, 3), "param", "w"), dtype="float32", shape=(3, 5),
        placements="(Shard(dim=0),)",
    )  # fmt: skip
    files = (FileEntry(".metadata", 7, "ab" * 16), FileEntry("__0_0.distcp", 0, "0" * 32))
    return replace(
        manifest(), format=SHARDED, file=".metadata", files=files, world_size=8,
        tensors={"model.w": entry}, layout={"mesh": ["cpu: 0=8"]}, environment="0" * 16,
        notes=("rng",),
    )  # fmt: skip


def test_of_several_files(tmp_path: Path) -> None:
    of_several().write(tmp_path)
    assert Manifest.read(tmp_path) == of_several()
    assert json.loads((tmp_path / FILE).read_text())["schema"] == SHARDED_SCHEMA


def test_one_file_is_written_in_the_first_version(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    assert content["schema"] == SCHEMA
    assert set(content) == {
        "schema", "step", "trace_step", "attempt", "status", "reasons", "file", "bytes", "tensors",
        "created", "xxh3", "own_xxh3",
    }  # fmt: skip
    assert set(content["tensors"]["rng"]) == {"h", "s1", "s2", "kind", "layer"}


def test_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    of_several().write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text()) | {"schema": "sdc-guard/manifest/3"}
    (tmp_path / FILE).write_text(json.dumps(without_checksum(content)))
    with pytest.raises(CheckpointUnreadable, match="written by a newer version of SDC Guard; upda"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"name": "../x", "bytes": 1, "xxh3": "0" * 32}]},
        {"files": [{"name": "x", "bytes": -1, "xxh3": "0" * 32}]},
        {"files": [{"name": "x", "bytes": 1, "xxh3": ""}]},
        {"files": [5]},
        {"files": None},
        {"world_size": 0},
        {"world_size": True},
        {"layout": []},
        {"notes": [1]},
        {"format": "torch"},
        {"format": "tar"},
        {"schema": SCHEMA},
        {"tensors": {"w": {"h": "0", "s1": "0", "s2": "0", "shape": ["x"]}}},
        {"tensors": {"w": {"h": "0", "s1": "0", "s2": "0", "dtype": 5}}},
    ],
    ids=str,
)
def test_a_damaged_field_of_several_files(tmp_path: Path, change: dict[str, Any]) -> None:
    of_several().write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(without_checksum(content) | change))
    with pytest.raises(CheckpointUnreadable, match="cannot be read") as caught:
        Manifest.read(tmp_path)
    assert "\n" not in str(caught.value)
    assert "own checksum" not in str(caught.value)


def without_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """As a manifest was written before it had a checksum of itself."""
    return {name: value for name, value in content.items() if name != "own_xxh3"}


@pytest.mark.parametrize("make", [manifest, of_several])
def test_one_from_before_it_had_a_checksum_of_itself(
    tmp_path: Path, make: Callable[[], Manifest]
) -> None:
    make().write(tmp_path)
    content = without_checksum(json.loads((tmp_path / FILE).read_text()))
    (tmp_path / FILE).write_text(json.dumps(content))
    assert Manifest.read(tmp_path) == make()


def test_blanks_and_order_say_nothing(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    text = json.dumps(dict(reversed(content.items())), indent=7)
    (tmp_path / FILE).write_text(text)
    assert Manifest.read(tmp_path) == manifest()


@pytest.mark.parametrize(
    "change",
    [
        {"created": 12.75},
        {"status": "clean", "reasons": []},
        {"reasons": ["one"]},
        {"xxh3": "0" * 32},
        {"own_xxh3": "0" * 32},
        {"own_xxh3": None},
    ],
    ids=str,
)
def test_what_it_did_not_say_when_it_was_written(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest().write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(content | change))
    with pytest.raises(CheckpointUnreadable, match="it does not fit its own checksum"):
        Manifest.read(tmp_path)


def test_round_trip(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    assert Manifest.read(tmp_path) == manifest()
    assert Manifest.read(tmp_path).tensors["model.w"].digest == Digest(2**64 - 1, 0, 2**63)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def contents() -> dict[str, Any]:
    return json.loads(json.dumps({"schema": SCHEMA, **vars(manifest())}, default=vars))  # type: ignore[no-any-return] # because json is untyped


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "sdc-guard/manifest/2"},
        {"schema": None},
        {"step": "7"},
        {"bytes": None},
        {"attempt": 1.5},
        {"status": "fine"},
        {"status": ["clean"]},
        {"reasons": None},
        {"tensors": []},
        {"tensors": {"w": None}},
        {"tensors": {"w": {"h": "0", "s1": "0"}}},
        {"tensors": {"w": {"h": "zz", "s1": "0", "s2": "0"}}},
        {"tensors": {"w": {"h": 5, "s1": "0", "s2": "0"}}},
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"file": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_field(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / FILE).write_text(json.dumps(contents() | change))
    with pytest.raises(CheckpointUnreadable, match="cannot be read") as caught:
        Manifest.read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '"x"', "\x00", "[" * 100_000])
def test_what_is_no_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointUnreadable):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("make", [manifest, of_several])
def test_any_flipped_byte_is_a_manifest_or_one_kind_of_error(
    tmp_path: Path, seed: int, make: Callable[[], Manifest]
) -> None:
    make().write(tmp_path)
    sound, random_ = (tmp_path / FILE).read_bytes(), random.Random(seed)
    for _ in range(300):
        content = bytearray(sound)
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        (tmp_path / FILE).write_bytes(content)
        try:
            read = Manifest.read(tmp_path)
        except CheckpointUnreadable:
            continue
        assert read == make(), bytes(content)  # a blank, or none that is needed


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"no manifest\.json there"):
        Manifest.read(tmp_path)
