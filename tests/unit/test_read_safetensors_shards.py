"""Safetensors in shards: what is missing, and what is of another save."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from hypothesis import given
from hypothesis import strategies as st
from made_safetensors import holds, lfs_pointer, only, opened
from safetensors.torch import load_file, save_file

from forensics.readers import safetensors_file
from forensics.readers.safetensors_index import sets_in
from forensics.readers.safetensors_shards import READER
from sdc_guard.errors import CheckpointUnreadable

INDEX = "model.safetensors.index.json"
FIRST, SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))


def saved(folder: Path, seed: int = 0, **options: Any) -> dict[str, torch.Tensor]:
    """Six tensors in three shards with their index, written by the library of the hub."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"layer.{at}.weight": torch.randn(8, 8, generator=generator) for at in range(6)}
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(weights, folder, max_shard_size=600, **options)
    assert sorted(path.name for path in folder.iterdir()) == [FIRST, SECOND, THIRD, INDEX]
    return weights


def edited_index(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "step-400"


def test_whole(folder: Path, seed: int) -> None:
    weights = saved(folder, seed, metadata={"step": "401"})
    checkpoint = only(READER, folder)
    assert (checkpoint.step, checkpoint.named_step) == (401, 400)
    assert checkpoint.readable
    assert checkpoint.reasons == ()
    assert checkpoint.path == folder
    content = READER.open(checkpoint)
    assert holds(content, weights)
    assert content.step == 401
    assert content.tensors["layer.0.weight"].files == (folder / FIRST,)
    integrity = READER.check(checkpoint)
    assert integrity.damaged == {}
    assert sorted(integrity.unchecked) == sorted(weights)
    assert integrity.bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert safetensors_file.READER.find(folder) == []  # its shards are no checkpoints
    assert only(READER, folder / INDEX).path == folder / INDEX
    assert holds(opened(READER, folder / INDEX), weights)


def test_folders_in_a_folder_and_sets_in_one(tmp_path: Path) -> None:
    many = {step: saved(tmp_path / f"step-{step}", step) for step in (9000, 10000)}
    found = sorted(READER.find(tmp_path), key=lambda one: one.step)
    assert [one.step for one in found] == [9000, 10000]
    assert all(holds(READER.open(one), many[one.step]) for one in found)
    together = tmp_path / "together"
    together.mkdir()
    for step in many:
        for path in (tmp_path / f"step-{step}").glob("*.safetensors"):
            path.rename(together / path.name.replace("model", f"step-{step}"))
    found = READER.find(together)
    assert sorted(one.step for one in found) == [9000, 10000]
    assert all(holds(READER.open(one), many[one.step]) for one in found)
    assert all("no index of shards: taken by their names" in one.notes for one in found)


def test_a_missing_shard_is_named(folder: Path) -> None:
    weights = saved(folder)
    (folder / SECOND).unlink()
    for index in (True, False):
        if not index:
            (folder / INDEX).unlink()
        checkpoint = only(READER, folder)
        assert not checkpoint.readable
        assert checkpoint.reasons == (f"2 of 3 shards present; missing {SECOND}",)
        there = {name: weights[f"layer.{name}.weight"] for name in (0, 1, 4, 5)}
        content = READER.open(checkpoint)
        assert holds(content, {f"layer.{at}.weight": one for at, one in there.items()})
        damaged = READER.check(checkpoint).damaged
        assert damaged[SECOND] == "missing"
        if index:
            gone = f"its shard {SECOND} cannot be read"
            assert damaged["layer.2.weight"] == damaged["layer.3.weight"] == gone
    for name in (FIRST, THIRD):
        (folder / name).unlink()
    assert READER.find(folder) == []


def test_all_shards_missing(folder: Path) -> None:
    saved(folder)
    for name in (FIRST, SECOND, THIRD):
        (folder / name).unlink()
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (f"0 of 3 shards present; missing {FIRST}, {SECOND}, {THIRD}",)
    for act in (READER.open, READER.check):
        with pytest.raises(CheckpointUnreadable):
            act(checkpoint)


def test_a_damaged_shard_is_named(folder: Path) -> None:
    saved(folder)
    content = (folder / THIRD).read_bytes()
    (folder / THIRD).write_bytes(content[:-4])
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (f"{THIRD}: safetensors data incomplete: 508 of 512 bytes",)
    assert not checkpoint.readable
    assert list(READER.check(checkpoint).damaged) == ["layer.5.weight"]
    lfs_pointer(folder / THIRD)
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (
        f"{THIRD}: Git LFS pointer; real content (12,965 bytes) not downloaded",
    )
    assert set(READER.check(checkpoint).damaged) == {THIRD, "layer.4.weight", "layer.5.weight"}
    (folder / THIRD).write_bytes(content + b"xy")
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    assert f"{THIRD}: 2 trailing bytes; tensors intact" in checkpoint.notes


def test_a_listed_tensor_that_is_not_in_its_shard(folder: Path) -> None:
    saved(folder)
    edited_index(folder, lambda index: index["weight_map"].update({"lost": SECOND}))
    checkpoint = only(READER, folder)
    assert not checkpoint.readable
    assert checkpoint.reasons == (f"listed in the index and not in {SECOND}: lost",)
    assert READER.check(checkpoint).damaged == {"lost": f"not in its shard {SECOND}"}


def test_a_tensor_in_two_shards_is_read_where_the_index_says(folder: Path) -> None:
    weights = saved(folder)
    third = load_file(folder / THIRD)
    save_file({**third, "layer.0.weight": torch.zeros(8, 8)}, folder / THIRD)
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    assert checkpoint.reasons == (
        f"in several shards ({FIRST}, {THIRD}): layer.0.weight",
        "the shards' tensors hold 1,792 bytes, the index says 1,536: a shard of another save?",
    )
    assert holds(READER.open(checkpoint), weights)


def test_a_shard_of_another_save(folder: Path) -> None:
    saved(folder)
    for name, step in ((FIRST, "400"), (SECOND, "500"), (THIRD, "400")):
        save_file(load_file(folder / name), folder / name, metadata={"step": step})
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == ("shards of different steps: 400, 500",)
    assert checkpoint.step == 400  # of the folder's name, for want of one inside
    halves = {name: one.half() for name, one in load_file(folder / SECOND).items()}
    save_file({**halves, "new": torch.ones(1)}, folder / SECOND, metadata={"step": "400"})
    assert only(READER, folder).reasons == (
        "not listed in the index: new; a shard of another save?",
        "the shards' tensors hold 1,284 bytes, the index says 1,536: a shard of another save?",
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty (0 bytes)"),
        (b'{"metadata": {"total_si', "JSON cut short after 23 characters"),
        (b"{nothing}", "damaged JSON: Expecting property name enclosed in double quotes in line 1"),
        (b'{"a": "\xff"}', "damaged JSON: no text at byte 7"),
        (b'{"a": ' * 100_000, "damaged JSON: RecursionError"),
        (b"[]", "JSON that is no object"),
        (b'{"weight_map": {}}', "no index of shards: weight_map missing"),
        (b'{"weight_map": {"w": 3}}', "weight_map does not give files by name"),
        (b'{"weight_map": {"w": "../w"}}', "names a file outside of its folder, ../w"),
        (b'{"weight_map": {"w": "/etc/passwd"}}',
         "names a file outside of its folder, /etc/passwd"),
        (b'{"weight_map": {"w": ".."}}', "names a file outside of its folder, .."),
        (b'{"weight_map": {"w": "a\\u0000"}}', "names a file outside of its folder, a\\x00"),
    ],
)  # fmt: skip
def test_a_damaged_index_leaves_the_shards_by_their_names(
    folder: Path, content: bytes, reason: str
) -> None:
    weights = saved(folder)
    (folder / INDEX).write_bytes(content)
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    assert checkpoint.reasons == (f"{INDEX}: {reason}",)
    assert holds(READER.open(checkpoint), weights)
    (folder / FIRST).unlink()
    assert f"2 of 3 shards present; missing {FIRST}" in only(READER, folder).reasons


def test_an_index_that_is_a_pointer(folder: Path) -> None:
    weights = saved(folder)
    lfs_pointer(folder / INDEX)
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (
        f"{INDEX}: Git LFS pointer; real content (12,965 bytes) not downloaded",
    )
    assert holds(READER.open(checkpoint), weights)
    for name in (FIRST, SECOND, THIRD):
        (folder / name).unlink()
    checkpoint = only(READER, folder)
    assert not checkpoint.readable
    assert checkpoint.reasons[-1] == "no shards there"


def test_shards_without_tensors(folder: Path) -> None:
    folder.mkdir()
    for number in (1, 2):
        save_file({}, folder / f"m-0000{number}-of-00002.safetensors")
    checkpoint = only(READER, folder)
    assert not checkpoint.readable
    assert checkpoint.reasons == ("no tensors in file",)


def test_names_that_promise_too_many_shards_are_none(tmp_path: Path) -> None:
    for name in ("m-00001-of-99999999.safetensors", "m-00000-of-00000.safetensors",
                 "shard-00001-model-00001-of-00002.safetensors"):  # fmt: skip
        (tmp_path / name).touch()
    assert sets_in(tmp_path) == []


@given(data=st.data())
def test_any_damage_to_the_index(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("index") / "step-1"
    saved(folder)
    index = bytearray((folder / INDEX).read_bytes())
    if data.draw(st.booleans()):
        del index[data.draw(st.integers(0, len(index) - 1)) :]
    else:
        bit = data.draw(st.integers(0, 8 * len(index) - 1))
        index[bit // 8] ^= 1 << bit % 8
    (folder / INDEX).write_bytes(index)
    for checkpoint in READER.find(folder):
        assert all(line.isprintable() for line in checkpoint.reasons)
        try:
            content = READER.open(checkpoint)
            READER.check(checkpoint)
        except CheckpointUnreadable:
            assert not checkpoint.readable
            continue
        for tensor in content.tensors.values():
            tensor.read()
