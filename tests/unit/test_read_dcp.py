"""DCP directories: what is read is what DCP reads, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_directories import STEP, flat, in_chunks, loaded, same_bits, saved, training

from forensics.checkpoint import Checkpoint
from forensics.content import Content
from forensics.readers.dcp import READER
from sdc_guard.errors import CheckpointUnreadable

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


def only(path: Path) -> Checkpoint:
    (found,) = READER.find(path)
    return found


def opened(path: Path) -> Content:
    return READER.open(only(path))


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype)


def test_an_adamw_training_equals_what_dcp_loads(tmp_path: Path) -> None:
    state = training()
    folder = saved(tmp_path / f"step-{STEP}", state)
    checkpoint, expected = only(folder), loaded(folder, state)
    assert (checkpoint.step, checkpoint.status, checkpoint.readable) == (STEP, "untested", True)
    assert (checkpoint.reasons, checkpoint.notes, checkpoint.named_step) == ((), (), None)
    content = READER.open(checkpoint)
    assert list(content.tensors) == list(flat(state))
    for name, tensor in content.tensors.items():
        assert tensor.shape == tuple(expected[name].shape)
        assert tensor.files == (folder / "__0_0.distcp",)
        assert same_bits(tensor.read(), expected[name])
        assert same_bits(tensor.read(), flat(state)[name])
    assert content.numbers["optim.param_groups.0.lr"] == 0.01
    assert content.numbers["optim.param_groups.0.betas.1"] == 0.999
    assert (content.foreign, content.aliases, content.step) == ({}, {}, STEP)


def test_every_dtype(tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    state = {str(dtype): random_bits(dtype, 3, 5) for dtype in DTYPES}
    content = opened(saved(tmp_path, state))
    for name, tensor in state.items():
        assert same_bits(content.tensors[name].read(), tensor), name
    integrity = READER.check(only(tmp_path))
    assert set(integrity.intact) == set(state)
    assert (integrity.damaged, integrity.unchecked) == ({}, (".metadata",))


def test_scalars_empty_strided_and_conjugated_tensors(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "empty scalar shape": torch.empty(2, 0, dtype=torch.int8),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "slice": torch.arange(20.0)[3:9:2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "nested": {"list": [torch.ones(2), {"deep": torch.zeros(1)}]},
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    content = opened(saved(tmp_path, state))
    assert set(content.tensors) == set(flat(state))
    for name, tensor in flat(state).items():
        assert same_bits(content.tensors[name].read(), tensor.detach().resolve_conj()), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_of_two_dimensions_are_put_together(
    tmp_path: Path, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    tensor = random_bits(dtype, 5, 4)
    boxes = [([0, 0], [2, 3]), ([2, 0], [3, 3]), ([0, 3], [5, 1]), ([5, 4], [0, 0])]
    folder = in_chunks(tmp_path, tensor, boxes)
    target = {"w": torch.zeros_like(tensor)}
    assert same_bits(opened(folder).tensors["w"].read(), tensor)
    assert same_bits(loaded(folder, target)["w"], tensor)
    assert READER.check(only(folder)).intact == ("w",)


@pytest.mark.parametrize("options", [{"thread_count": 3}, {"single_file_per_rank": False}])
def test_items_in_several_files(tmp_path: Path, options: dict[str, Any]) -> None:
    state = training()
    content = opened(saved(tmp_path, state, **options))
    assert len(list(tmp_path.glob("*.distcp"))) >= 3
    for name, tensor in flat(state).items():
        assert same_bits(content.tensors[name].read(), tensor)
    assert content.step == STEP


def test_what_is_no_tensor_is_evaluated_inertly(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([0.25, {"losses": torch.arange(3.0)}], buffer)
    state: dict[str, Any] = {
        "train_state": {"step": torch.tensor(12, dtype=torch.int32), "losses": buffer},
        "text": "a name", "flag": True, "nothing": None, "ratio": 0.5, "count": 3, "huge": 1 << 70,
        "pair": (torch.full((2,), 9), "x"),
        "raw": b"bytes", "kind": torch.float16, "place": Path("a"), "device": torch.device("cpu"),
        "shape": torch.Size([2, 3]),
    }  # fmt: skip
    content = opened(saved(tmp_path, state))
    assert content.step == 12
    assert dict(content.numbers) == {
        "train_state.losses.0": 0.25, "text": "a name", "flag": True, "ratio": 0.5, "count": 3,
        "pair.1": "x", "kind": "torch.float16", "shape.0": 2, "shape.1": 3,
    }  # fmt: skip
    assert set(content.tensors) == {"train_state.step", "pair.0", "train_state.losses.1.losses"}
    assert content.tensors["pair.0"].read().tolist() == [9, 9]
    assert content.tensors["train_state.losses.1.losses"].read().tolist() == [0.0, 1.0, 2.0]
    assert content.foreign == {
        "raw": "bytes", "huge": "int", "place": "pathlib.PosixPath", "device": "torch.device",
    }  # fmt: skip
    assert set(READER.check(only(tmp_path)).intact) == set(content.tensors)


@pytest.mark.parametrize("extra", [{"step": torch.tensor([5])}, {"iteration": 5.0},
                                   {"train_state": {"global_step": 5}}])  # fmt: skip
def test_the_step_is_the_saved_one(tmp_path: Path, extra: dict[str, Any]) -> None:
    folder = saved(tmp_path / "checkpoint-7", {"w": torch.ones(1)} | extra)
    checkpoint = only(folder)
    assert (checkpoint.step, checkpoint.named_step) == (5, 7)
    assert checkpoint.notes == ("the name says step 7, the content says step 5",)
    assert checkpoint.status == "untested"


@pytest.mark.parametrize(
    ("name", "step"),
    [("step-7", 7), ("step_12", 12), ("step=3", 3), ("checkpoint-900", 900), ("42", 42),
     ("iter_0000100", 100), ("global_step9", 9), ("run2-step-8", 8), ("v2_ckpt_11", 11)],
)  # fmt: skip
def test_the_step_of_a_name(tmp_path: Path, name: str, step: int) -> None:
    checkpoint = only(saved(tmp_path / name, {"w": torch.ones(1), "step": "not a number"}))
    assert (checkpoint.step, checkpoint.named_step) == (step, None)
    assert checkpoint.notes == ("its step is the one in its name",)


def test_folders_of_a_run_are_found_in_any_way_they_are_named(tmp_path: Path) -> None:
    for step in (9, 10, 1000):
        saved(tmp_path / f"step-{step}", {"w": torch.ones(1)})
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    found = READER.find(tmp_path)
    assert sorted(checkpoint.step for checkpoint in found) == [9, 10, 1000]
    for path in (tmp_path / "step-9" / ".metadata", tmp_path / "step-9" / "__0_0.distcp"):
        assert only(path).path == tmp_path / "step-9"
    assert READER.find(tmp_path / "logs") == READER.find(tmp_path / "notes.txt") == []
    assert READER.find(tmp_path / "nowhere") == []


def test_megatrons_folder_with_its_common_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "iter_0000100", {"decoder.weight": torch.arange(4.0)})
    torch.save(
        {"iteration": 99, "args": Path("x"), "optimizer": {"lr": 0.1, "norm": torch.ones(2)}},
        folder / "common.pt",
    )
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    checkpoint = only(folder)
    assert (checkpoint.step, checkpoint.named_step) == (99, 100)
    content = READER.open(checkpoint)
    assert set(content.tensors) == {"decoder.weight", "optimizer.norm"}
    assert content.tensors["optimizer.norm"].read().tolist() == [1.0, 1.0]
    assert content.numbers == {"iteration": 99, "optimizer.lr": 0.1}
    assert content.foreign == {"args": "pathlib.PosixPath"}
    integrity = READER.check(checkpoint)
    assert set(integrity.intact) == set(content.tensors)
    files = [folder / ".metadata", folder / "common.pt", folder / "__0_0.distcp"]
    assert integrity.bytes == sum(file.stat().st_size for file in files)


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error_and_no_crash(tmp_path: Path) -> None:
    content = opened(saved(tmp_path, {"w": torch.ones(1000)}))
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(CheckpointUnreadable, match=r"w cannot be read: .*ends at byte 0"):
        content.tensors["w"].read()
