"""DCP in the form of Hugging Face: in boxes, and put together."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_directories import same_bits
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from forensics.checkpoint import Checkpoint
from forensics.readers.dcp_hf import READER
from sdc_guard.errors import CheckpointUnreadable

STATE = {
    "w": torch.arange(12.0).reshape(4, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "half": torch.randn(5, 2, generator=torch.Generator().manual_seed(1)).half(),
}
# what torch 2.13 cannot put together, or does wrongly
MORE = {
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 2),
    "count": torch.tensor([3, 4]),
    "flag": torch.tensor(True),
}
WHOLE = "model-00001-of-00001.safetensors"
FIRST = "shard-00001-model-00001-of-00001.safetensors"
SECOND = "shard-00002-model-00001-of-00001.safetensors"


def only(path: Path) -> Checkpoint:
    (found,) = READER.find(path)
    return found


def saved(folder: Path, state: dict[str, torch.Tensor] = STATE, **options: Any) -> Path:
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.save(dict(state), storage_writer=writer, no_dist=True)
    return folder


def in_boxes(folder: Path) -> Path:
    """Two ranks' shards of a tensor of 4 x 3 and one of 2 x 5, as the writer lays them out."""
    folder.mkdir(parents=True)
    shards = {
        FIRST: {"w": ([0, 0], STATE["w"][:3]), "v": ([0, 0], torch.ones(2, 2))},
        SECOND: {"w": ([3, 0], STATE["w"][3:]), "v": ([0, 2], torch.zeros(2, 3))},
    }
    for name, boxes in shards.items():
        places = {key: {"saved_offsets": at} for key, (at, _) in boxes.items()}
        metadata = {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}
        tensors = {key: box.contiguous() for key, (_, box) in boxes.items()}
        save_file(tensors, folder / name, metadata)
    return folder


@pytest.mark.parametrize("together", [False, True])
def test_values_equal_what_dcp_loads(tmp_path: Path, together: bool) -> None:
    state = STATE if together else STATE | MORE
    parts = {name: 1 + index % 2 for index, name in enumerate(state)}
    folder = saved(
        tmp_path / "step-20", state, enable_consolidation=together, fqn_to_index_mapping=parts
    )
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.load(target, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    checkpoint = only(folder)
    assert (checkpoint.step, checkpoint.readable, checkpoint.reasons) == (20, True, ())
    content = READER.open(checkpoint)
    assert set(content.tensors) == set(state)
    for name, tensor in content.tensors.items():
        assert tensor.shape == tuple(state[name].shape)
        assert same_bits(tensor.read(), target[name])
        assert same_bits(tensor.read(), state[name])
    integrity = READER.check(checkpoint)
    assert integrity.damaged == {}
    assert set(integrity.intact if together else integrity.unchecked) == set(state)
    assert integrity.bytes == sum(f.stat().st_size for f in folder.rglob("*.safetensors"))
    if together:
        assert only(folder / "sharded") == checkpoint


def test_boxes_of_two_ranks_are_put_together(tmp_path: Path) -> None:
    folder = in_boxes(tmp_path / "step-3")
    content = READER.open(only(folder))
    assert same_bits(content.tensors["w"].read(), STATE["w"])
    assert content.tensors["v"].read().tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0]] * 2
    assert content.tensors["v"].files == (folder / FIRST, folder / SECOND)
    assert "the last rank's shards" in only(folder).notes[-1]
    assert [c.path for c in READER.find(tmp_path)] == [folder]
    assert only(folder / SECOND).path == folder


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    folder = in_boxes(tmp_path / "step-3")
    (folder / FIRST).unlink()
    checkpoint = only(folder)
    assert not checkpoint.readable
    assert checkpoint.reasons[0] == "shards: the shards of 1 ranks are missing: shard-00001"
    assert "w: 9 of its 12 elements are in no box" in checkpoint.reasons
    with pytest.raises(CheckpointUnreadable, match="9 of its 12 elements"):
        READER.open(checkpoint).tensors["w"].read()
    assert {"shards", "w", "v"} == set(READER.check(checkpoint).damaged)


@pytest.mark.parametrize(("size", "told"), [(0, "empty (0 bytes)"), (4, "header incomplete"),
                                            (-8, "data incomplete")])  # fmt: skip
def test_a_cut_shard_is_named(tmp_path: Path, size: int, told: str) -> None:
    folder = in_boxes(tmp_path / "step-3")
    size += (folder / SECOND).stat().st_size if size < 0 else 0
    os.truncate(folder / SECOND, size)
    checkpoint = only(folder)
    assert not checkpoint.readable
    assert checkpoint.reasons[0].startswith(f"{SECOND}: ")
    assert told in checkpoint.reasons[0]


def test_a_flipped_bit_in_either_form_is_found_by_the_other(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", enable_consolidation=True)
    for file in folder.rglob("*.safetensors"):
        content = file.read_bytes()
        at = content.index(STATE["w"].numpy().tobytes())
        file.write_bytes(content[: at + 5] + bytes([content[at + 5] ^ 1]) + content[at + 6 :])
        integrity = READER.check(only(folder))
        assert integrity.damaged == {
            "w": "1 bytes differ between its shards and the consolidated file"
        }
        assert set(integrity.intact) == set(STATE) - {"w"}
        file.write_bytes(content)


def test_a_scalar_that_torch_put_together_wrongly_is_told(tmp_path: Path) -> None:
    folder = saved(tmp_path, {"s": torch.tensor(3.0), "v": STATE["w"]}, enable_consolidation=True)
    wrong = load_file(folder / WHOLE)["s"] != 3.0
    integrity = READER.check(only(folder))
    assert ("s" in integrity.damaged) == wrong  # a later torch may do it right
    assert "v" in integrity.intact
    if wrong:
        assert integrity.damaged["s"] == (
            "2 bytes differ between its shards and the consolidated file, which has zeros: "
            "torch 2.13 consolidates so"
        )
    assert READER.open(only(folder)).tensors["s"].read() == 3.0


def test_what_was_put_together_is_read_where_the_boxes_are_lost(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", enable_consolidation=True)
    os.truncate(folder / "sharded" / FIRST, 9)
    checkpoint = only(folder)
    assert checkpoint.readable
    assert FIRST in checkpoint.reasons[0]
    assert same_bits(READER.open(checkpoint).tensors["w"].read(), STATE["w"])


def test_boxes_are_read_where_putting_together_did_not_end(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", enable_consolidation=True)
    whole = folder / WHOLE
    os.truncate(whole, whole.stat().st_size - 8)
    checkpoint = only(folder)
    assert f"{WHOLE}: safetensors data incomplete" in checkpoint.reasons[0]
    content = READER.open(checkpoint)
    assert content.tensors["w"].files == (folder / "sharded" / FIRST,)
    assert same_bits(content.tensors["w"].read(), STATE["w"])


@pytest.mark.parametrize(
    "info",
    ["no json", "[]", "{}", '{"w": {"saved_offsets": [0]}}', '{"w": {"saved_offsets": [-1, 0]}}',
     '{"w": {"saved_offsets": [4611686018427387903, 0]}}', "[" * 100_000],
)  # fmt: skip
def test_damaged_places_are_told(tmp_path: Path, info: str) -> None:
    save_file({"w": torch.ones(2, 2)}, tmp_path / FIRST, {"DCP_SHARDING_INFO": info})
    checkpoint = only(tmp_path)
    assert not checkpoint.readable
    assert all("\n" not in reason for reason in checkpoint.reasons)
    with pytest.raises(CheckpointUnreadable):
        READER.open(checkpoint).tensors["w"].read()


def test_ordinary_safetensors_are_another_readers(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / WHOLE)
    assert READER.find(tmp_path) == READER.find(tmp_path / "nowhere") == []
