"""Folders of a file per rank: DeepSpeed's and Megatron's.

Neither library is at hand: the folders are made with torch.save as their documentation lays them
out, names and keys included.
"""

from __future__ import annotations

import struct
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.readers import deepspeed, megatron
from sdc_guard.errors import CheckpointUnreadable


def deepspeed_folder(root: Path, step: int, ranks: int = 2, inside: int | None = None) -> Path:
    """ZeRO stages 1 and 2: a model file, and an optimizer file per data-parallel rank."""
    folder = root / f"global_step{step}"
    folder.mkdir(parents=True)
    state = {
        "module": {"w": torch.full((8,), float(step)), "b": torch.zeros(2)},
        "global_steps": step if inside is None else inside,
        "global_samples": 8 * step,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "param_shapes": [{"w": torch.Size([8]), "b": torch.Size([2])}],
        "ds_config": {"train_batch_size": 8},
        "ds_version": "0.16.0",
    }
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        part = {"single_partition_of_fp32_groups": [torch.full((5,), 100.0 + rank)]}
        saved = {"optimizer_state_dict": part, "ds_version": "0.16.0"}
        torch.save(saved, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(folder.name)
    return folder


def megatron_folder(root: Path, step: int, tensor: int = 2) -> Path:
    """A folder per tensor-parallel rank."""
    folder = root / f"iter_{step:07d}"
    for rank in range(tensor):
        part = folder / f"mp_rank_{rank:02d}"
        part.mkdir(parents=True)
        state = {
            "args": Namespace(tensor_model_parallel_size=tensor),
            "checkpoint_version": 3.0,
            "iteration": step,
            "model": {"language_model": {"w": torch.full((4,), float(10 * rank + step))}},
            "optimizer": {"fp32_from_fp16_params": [[torch.ones(4)]]},
            "rng_state": [{"torch_rng_state": torch.arange(3, dtype=torch.uint8)}],
        }
        torch.save(state, part / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return folder


def make(format: str, root: Path, step: int) -> Path:
    return (deepspeed_folder if format == "deepspeed" else megatron_folder)(root, step)


def only(found: list[Checkpoint]) -> Checkpoint:
    (one,) = found
    return one


@pytest.mark.parametrize("format", ["deepspeed", "megatron"])
def test_steps_sort_as_numbers(tmp_path: Path, format: str) -> None:
    for step in (1000, 900, 9, 100):
        make(format, tmp_path, step)
    found = index(tmp_path)
    assert [one.step for one in found] == [9, 100, 900, 1000]
    assert {one.format for one in found} == {format}
    assert all(one.readable and one.named_step is None for one in found)
    tracked = "the tracker file latest"  # it names the one written last, of step 100
    assert [tracked in " ".join(one.notes) for one in found] == [False, False, False, True]
    assert only(index(found[1].path)).step == 100


def test_the_content_of_a_deepspeed_folder(tmp_path: Path) -> None:
    found = only(deepspeed.find(deepspeed_folder(tmp_path, 40)))
    content = deepspeed.READER.open(found)
    assert content.step == 40
    assert content.tensors["mp_rank_00_model_states/module.w"].read().tolist() == [40.0] * 8
    group = "optimizer_state_dict.single_partition_of_fp32_groups.0"
    name = f"bf16_zero_pp_rank_1_mp_rank_00_optim_states/{group}"
    assert content.tensors[name].read().tolist() == [101.0] * 5
    assert content.numbers["mp_rank_00_model_states/ds_config.train_batch_size"] == 8
    checked = deepspeed.READER.check(found)
    assert set(checked.intact) == set(content.tensors)
    assert (checked.damaged, checked.unchecked) == ({}, ())


def test_the_content_of_a_megatron_folder(tmp_path: Path) -> None:
    found = only(megatron.find(megatron_folder(tmp_path, 40)))
    content = megatron.READER.open(found)
    assert content.step == 40
    name = "mp_rank_01/model_optim_rng/model.language_model.w"
    assert content.tensors[name].read().tolist() == [50.0] * 4
    assert content.foreign["mp_rank_00/model_optim_rng/args"] == "argparse.Namespace"


def test_the_name_and_the_content_disagree(tmp_path: Path) -> None:
    """A15: an older step inside."""
    deepspeed_folder(tmp_path, 800, inside=799)
    found = only(index(tmp_path))
    assert (found.step, found.named_step, found.readable) == (799, 800, True)
    assert found.notes == ("the name says step 800, the content says step 799",)


def test_a_flipped_byte_in_one_ranks_file(tmp_path: Path) -> None:
    found = only(deepspeed.find(deepspeed_folder(tmp_path, 40)))
    path = found.path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<f", 101.0)) + 8] ^= 1
    path.write_bytes(content)
    checked = deepspeed.READER.check(found)
    (name,) = checked.damaged
    assert name.startswith("bf16_zero_pp_rank_1_mp_rank_00_optim_states/optimizer_state_dict")
    assert checked.damaged[name] == "CRC mismatch in record data/0"
    assert len(checked.intact) == 3


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: list[tuple[str, str, Any, str]] = [
    ("deepspeed", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", Path.unlink,
     "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt of 2 files of the optimizer missing"),
    ("deepspeed", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", Path.unlink,
     "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt of 2 files of the optimizer missing"),
    ("deepspeed", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", empty,
     "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt is empty (0 bytes)"),
    ("deepspeed", "mp_rank_00_model_states.pt", Path.unlink, "no *_model_states.pt is in it"),
    ("deepspeed", "mp_rank_00_model_states.pt", cut,
     "mp_rank_00_model_states.pt: unreadable: truncated ("),
    ("megatron", "mp_rank_00/model_optim_rng.pt", Path.unlink,
     "mp_rank_00/model_optim_rng.pt is missing"),
    ("megatron", "mp_rank_01/model_optim_rng.pt", cut,
     "mp_rank_01/model_optim_rng.pt: unreadable: truncated ("),
]  # fmt: skip


@pytest.mark.parametrize(("format", "file", "damage", "said"), DAMAGES)
def test_incomplete_folders(tmp_path: Path, format: str, file: str, damage: Any, said: str) -> None:
    for step in (10, 20, 30):
        make(format, tmp_path, step)
    bad = index(tmp_path)[1].path
    damage(bad / file)
    found = index(tmp_path)
    assert [one.step for one in found] == [10, 20, 30]  # of the damaged one by its name
    assert [one.readable for one in found] == [True, False, True]
    assert found[1].reasons[0].startswith(f"incomplete: {said}")


def test_a_rank_without_a_folder(tmp_path: Path) -> None:
    folder = megatron_folder(tmp_path, 7, tensor=3)
    (folder / "mp_rank_00" / "model_optim_rng.pt").unlink()
    (folder / "mp_rank_00").rmdir()
    assert only(index(tmp_path)).reasons == ("incomplete: tensor-parallel rank 0 is missing",)


def test_forms_that_are_not_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "iter_0000010").mkdir()
    (tmp_path / "iter_0000010" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    found = only(index(tmp_path))
    assert not found.readable
    assert "zarr, which is not read" in found.reasons[0]
    (tmp_path / "iter_0000010" / ".metadata").write_bytes(b"")
    assert megatron.find(tmp_path) == []  # of PyTorch's distributed form: its reader's


def test_an_empty_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "global_step5").mkdir()
    found = only(index(tmp_path))
    assert found.reasons == ("incomplete: no *_model_states.pt is in it",)
    with pytest.raises(CheckpointUnreadable):
        deepspeed.READER.open(found)
    with pytest.raises(CheckpointUnreadable):
        deepspeed.READER.check(found)


def test_the_tracker_names_what_is_gone(tmp_path: Path) -> None:
    megatron_folder(tmp_path, 10)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    said = "the tracker file latest_checkpointed_iteration.txt names iter_0000020, which is not"
    assert only(index(tmp_path)).notes == (f"{said} there",)
