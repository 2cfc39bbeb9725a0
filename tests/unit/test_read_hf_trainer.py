"""Trainer folders that are damaged, incomplete, of other numbers or hostile: one line each."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from made_safetensors import holds, lfs_pointer, only
from safetensors.torch import load_file, save_file, save_model
from transformers import TrainerState

from forensics.checkpoint import Checkpoint
from forensics.readers import safetensors_file, safetensors_shards
from forensics.readers.hf_trainer import READER
from sdc_guard.errors import CheckpointUnreadable


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def made(runs: Path, number: int, step: int | None = None) -> Path:
    """A folder with what the Trainer writes, by the same writers."""
    folder = runs / f"checkpoint-{number}"
    folder.mkdir(parents=True)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.embedding.weight).sum().backward()
    optimizer.step()
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": number, "_last_lr": [1e-3]}, folder / "scheduler.pt")
    state = np.random.RandomState(0).get_state()
    torch.save({"python": (3, (1, 2)), "numpy": state, "cpu": torch.get_rng_state()},
               folder / "rng_state.pth")  # fmt: skip
    history: list[dict[str, float]] = [{"step": 1, "loss": 2.5, "grad_norm": 1.25}]
    state_of = TrainerState(global_step=number if step is None else step, log_history=history)
    state_of.save_to_json(str(folder / "trainer_state.json"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "runs", 300)


def reasons(folder: Path) -> tuple[str, ...]:
    return only(READER, folder).reasons


def test_whole(folder: Path) -> None:
    checkpoint = only(READER, folder)
    assert checkpoint == Checkpoint(300, folder, "hf-trainer", "untested")
    content = READER.open(checkpoint)
    weights = load_file(folder / "model.safetensors")
    assert {name: content.tensors[name].read().tolist() for name in weights} == {
        name: one.tolist() for name, one in weights.items()
    }
    assert content.aliases == {"head.weight": "embedding.weight"}
    assert content.tensors["rng_state.cpu"].dtype == torch.uint8
    assert content.numbers["trainer_state.global_step"] == 300
    assert only(READER, folder.parent) == checkpoint


def test_numbers_sort_as_numbers_whatever_the_times_say(tmp_path: Path) -> None:
    for number in (1100, 900, 1000, 9000, 10000):
        os.utime(made(tmp_path, number) / "model.safetensors", (0, 0))
    found = sorted(READER.find(tmp_path), key=lambda one: one.step)
    assert [one.step for one in found] == [900, 1000, 1100, 9000, 10000]
    assert all(one.reasons == one.notes == () for one in found)


def test_the_number_inside_counts_and_both_are_told(tmp_path: Path) -> None:
    made(tmp_path, 800, step=799)
    made(tmp_path, 900)
    first, second = sorted(READER.find(tmp_path), key=lambda one: one.step)
    assert (first.step, first.named_step, second.step) == (799, 800, 900)
    assert first.notes == ("the name says step 800, the content says step 799",)
    assert first.readable
    assert READER.open(first).step == 799


@pytest.mark.parametrize("state", [True, False])
def test_deepspeeds_folder_inside_counts(tmp_path: Path, state: bool) -> None:
    folder = made(tmp_path, 800)
    (folder / "global_step799").mkdir()
    (folder / "optimizer.pt").unlink()
    if not state:
        (folder / "trainer_state.json").unlink()
    checkpoint = only(READER, folder)
    assert (checkpoint.step, checkpoint.named_step) == (799, 800)
    assert checkpoint.readable
    assert checkpoint.notes[-1] == "the name says step 800, the content says step 799"
    if state:
        assert checkpoint.reasons == ()
        assert checkpoint.notes[0] == (
            "trainer_state.json says step 800, DeepSpeed's folder beside it is global_step799"
        )


def test_deepspeeds_weights_are_read_or_told(tmp_path: Path) -> None:
    folder = made(tmp_path, 800)
    (folder / "global_step800").mkdir()
    (folder / "model.safetensors").unlink()
    checkpoint = only(READER, folder)
    assert not checkpoint.readable
    assert "in global_step800, a folder of DeepSpeed" in checkpoint.reasons[0]
    module = {"module": {"w": torch.arange(3.0)}, "global_steps": 800}
    torch.save(module, folder / "global_step800" / "mp_rank_00_model_states.pt")
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    assert torch.equal(READER.open(checkpoint).tensors["module.w"].read(), torch.arange(3.0))


def test_a_save_that_was_interrupted(folder: Path) -> None:
    """In the order in which the Trainer writes: the last file first, then ever more."""
    incomplete: list[str] = []
    for name in ("trainer_state.json", "rng_state.pth", "scheduler.pt", "optimizer.pt"):
        (folder / name).unlink()
        incomplete.append(f"checkpoint-300 incomplete: {name} missing")
        if name == "optimizer.pt":  # then nothing says that the others are to be there
            incomplete = [incomplete[0], incomplete[-1]]
        checkpoint = only(READER, folder)
        assert sorted(checkpoint.reasons) == sorted(incomplete)
        assert checkpoint.readable
        assert (checkpoint.step, checkpoint.named_step) == (300, None)
        assert checkpoint.notes == ("its step is the one in its name",)
        assert "embedding.weight" in READER.open(checkpoint).tensors
    (folder / "model.safetensors").unlink()
    checkpoint = only(READER, folder)
    assert not checkpoint.readable
    assert "incomplete: model.safetensors missing" in checkpoint.reasons
    for act in (READER.open, READER.check):
        with pytest.raises(CheckpointUnreadable, match=r"model\.safetensors missing"):
            act(checkpoint)


def test_an_optimizer_that_is_missing_beside_the_others(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    assert reasons(folder) == ("checkpoint-300 incomplete: optimizer.pt missing",)


def test_weights_alone_are_what_save_only_model_writes(folder: Path) -> None:
    for name in ("rng_state.pth", "scheduler.pt", "optimizer.pt"):
        (folder / name).unlink()
    assert only(READER, folder) == Checkpoint(300, folder, "hf-trainer", "untested")


def test_truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for cut, reason in (
        (4, "model.safetensors: safetensors header incomplete: 4 of 8 bytes"),
        (len(content) - 1, "model.safetensors: safetensors data incomplete: 111 of 112 bytes"),
    ):
        file.write_bytes(content[:cut])
        checkpoint = only(READER, folder)
        assert (checkpoint.readable, checkpoint.reasons) == (False, (reason,))
        assert checkpoint.step == 300
    integrity = READER.check(checkpoint)
    assert integrity.damaged == {"embedding.weight": "111 of its 112 bytes are there"}
    file.write_bytes(content + b"1234")
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    assert checkpoint.notes == ("model.safetensors: 4 trailing bytes; tensors intact",)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth",
             "trainer_state.json"],
)  # fmt: skip
def test_git_lfs_pointers(folder: Path, name: str) -> None:
    lfs_pointer(folder / name)
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (
        f"{name}: Git LFS pointer; real content (12,965 bytes) not downloaded",
    )
    assert checkpoint.readable == (name != "model.safetensors")
    assert checkpoint.step == 300


def test_damaged_parts_do_not_keep_the_weights_from_being_read(folder: Path) -> None:
    for name in ("optimizer.pt", "scheduler.pt"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    (folder / "rng_state.pth").write_bytes(b"")
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    half = (folder / "optimizer.pt").stat().st_size
    assert checkpoint.reasons[0] == f"optimizer.pt: truncated at {half:,} bytes"
    assert checkpoint.reasons[1] == "rng_state.pth: empty (0 bytes)"
    content = READER.open(checkpoint)
    assert list(content.tensors) == ["embedding.weight"]
    assert content.foreign["optimizer."].startswith("cannot be read: unreadable: truncated")
    assert set(READER.check(checkpoint).damaged) == {
        "optimizer.pt", "scheduler.pt", "rng_state.pth",
    }  # fmt: skip


def test_a_flipped_bit_in_the_optimizer_is_found_by_its_checksum(folder: Path) -> None:
    file = folder / "optimizer.pt"
    moment = torch.load(file, weights_only=True)["state"][0]["exp_avg"]
    content = bytearray(file.read_bytes())
    content[content.find(moment.numpy().tobytes())] ^= 0x40
    file.write_bytes(content)
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == ()
    integrity = READER.check(checkpoint)
    assert list(integrity.damaged) == ["optimizer.state.0.exp_avg"]
    assert "CRC mismatch" in integrity.damaged["optimizer.state.0.exp_avg"]
    assert "optimizer.state.0.exp_avg_sq" in integrity.intact


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "Not a Hugging Face trainer_state: log_history missing"),
        ('{"global_step": 5}', "Not a Hugging Face trainer_state: log_history missing"),
        ('{"log_history": []}', "Not a Hugging Face trainer_state: global_step missing"),
        ('{"log_history": [], "global_step": true}',
         "Not a Hugging Face trainer_state: global_step missing"),
        ('{"log_history": [', "trainer_state.json: JSON cut short after 17 characters"),
        ("", "trainer_state.json: empty (0 bytes)"),
        ("[1]", "trainer_state.json: JSON that is no object"),
        ("\0" * 50, "trainer_state.json: damaged JSON: Expecting value in line 1"),
    ],
)  # fmt: skip
def test_a_state_that_is_none(folder: Path, text: str, reason: str) -> None:
    (folder / "trainer_state.json").write_text(text)
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (reason,)
    assert checkpoint.readable
    assert checkpoint.step == 300
    assert checkpoint.notes == ("its step is the one in its name",)
    assert READER.check(checkpoint).damaged == {"trainer_state.json": reason}


def test_other_weights(tmp_path: Path) -> None:
    folder = made(tmp_path, 300)
    (folder / "model.safetensors").unlink()
    torch.save(Tied().state_dict(), folder / "pytorch_model.bin")
    (folder / "optimizer.pt").unlink()
    checkpoint = only(READER, folder)
    assert checkpoint.readable
    content = READER.open(checkpoint)
    assert content.aliases == {"head.weight": "embedding.weight"}
    assert torch.equal(content.tensors["embedding.weight"].read(), Tied().head.weight)
    (folder / "pytorch_model.bin").write_bytes(b"PK\3\4")
    assert "pytorch_model.bin: truncated at 4 bytes" in reasons(folder)
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model-00001-of-00002.bin").touch()
    assert "its weights are in several .bin files, which are not read" in reasons(folder)
    (folder / "pytorch_model_fsdp_0").mkdir()
    assert "pytorch_model_fsdp_0, a folder of DCP: give that folder" in str(reasons(folder))
    save_file({"lora.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    checkpoint = only(READER, folder)
    assert holds(safetensors_file.open_file(folder / "adapter_model.safetensors"),
                 {"lora.weight": torch.ones(2)})  # fmt: skip
    assert checkpoint.readable


def test_missing_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    index = {"metadata": {}, "weight_map": {f"w{at}": name for at, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for at in (0, 2):
        save_file({f"w{at}": torch.ones(2)}, folder / names[at])
    checkpoint = only(READER, folder)
    assert checkpoint.reasons == (f"2 of 3 shards present; missing {names[1]}",)
    assert not checkpoint.readable
    assert "w0" in READER.open(checkpoint).tensors


def test_folders_of_others_are_left_to_them(tmp_path: Path) -> None:
    for name, inside in [("checkpoint-1", ".metadata"), ("checkpoint-2", "manifest.json"),
                         ("checkpoint-3", "unet"), ("step-4", "model.safetensors")]:  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / inside).touch()
        if name in ("checkpoint-1", "checkpoint-2"):
            (tmp_path / name / "optimizer.pt").touch()
    (tmp_path / "checkpoint-5").touch()
    (tmp_path / "tmp-checkpoint-6").mkdir()
    assert READER.find(tmp_path) == []
    (tmp_path / "checkpoint-7").mkdir()
    found = only(READER, tmp_path)
    assert (found.step, found.readable) == (7, False)
    assert "checkpoint-7 incomplete: trainer_state.json missing" in found.reasons
    assert READER.find(tmp_path / "checkpoint-5") == READER.find(tmp_path / "nothing") == []


def test_the_output_folder_is_not_its_own_checkpoint(folder: Path) -> None:
    runs = folder.parent
    for name in ("model.safetensors", "trainer_state.json"):
        shutil.copy(folder / name, runs / name)
    assert [one.path for one in READER.find(runs)] == [folder]
    shutil.rmtree(folder)
    last = only(READER, runs)
    assert (last.path, last.step) == (runs, 300)
    assert safetensors_file.READER.find(runs) == safetensors_shards.READER.find(runs) == []


class _Marks:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self._marker}",))


def hostile(marker: Path) -> Iterator[tuple[str, bytes]]:
    """Files that run a command in whoever loads them."""
    plain = pickle.dumps(_Marks(marker))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin"):
        path = marker.parent / "made"
        torch.save({"w": torch.ones(2), "x": _Marks(marker)}, path)
        yield name, path.read_bytes()
        yield name, plain
    for name in ("training_args.bin", "model.safetensors", "trainer_state.json",
                 "model.safetensors.index.json"):  # fmt: skip
        yield name, plain


def test_hostile_pickles_are_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    _ = pickle.loads(pickle.dumps(_Marks(marker)))
    assert marker.exists()  # that is what would happen
    marker.unlink()
    for number, (name, content) in enumerate(hostile(marker), start=1):
        folder = made(tmp_path / "runs", number)
        if name in ("pytorch_model.bin", "model.safetensors.index.json"):
            (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
        checkpoint = only(READER, folder)
        for act in (READER.open, READER.check):
            try:
                found = act(checkpoint)
            except CheckpointUnreadable:
                continue
            for tensor in getattr(found, "tensors", {}).values():
                tensor.read()
    assert len(READER.find(tmp_path / "runs")) == 12
    assert not marker.exists()


class _Files(dict[str, bytes]):
    """Told by their names: Hypothesis writes what a test was given, and whole files are no help."""

    def __repr__(self) -> str:
        return repr(sorted(self))


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, _Files]:
    folder = made(tmp_path_factory.mktemp("spoilt"), 300)
    return folder, _Files({path.name: path.read_bytes() for path in folder.iterdir()})


@given(which=st.integers(0, 99), is_cut=st.booleans(), where=st.integers(0, 2**32))
@example(which=1, is_cut=False, where=17056)  # a record's way of packing, in the directory
def test_any_damage_to_any_file(
    spoilt: tuple[Path, _Files], which: int, is_cut: bool, where: int
) -> None:
    folder, files = spoilt
    name = sorted(files)[which % len(files)]
    content = bytearray(files[name])
    if is_cut:
        del content[where % len(content) :]
    else:
        bit = where % (8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
    try:
        (folder / name).write_bytes(content)
        checkpoint = only(READER, folder)
        assert all(line.isprintable() for line in (*checkpoint.reasons, *checkpoint.notes))
        try:
            tensors = READER.open(checkpoint).tensors.values()
            integrity = READER.check(checkpoint)
        except CheckpointUnreadable:
            assert not checkpoint.readable
            return
        for tensor in tensors:
            try:
                tensor.read()
            except CheckpointUnreadable:
                assert integrity.damaged
    finally:
        (folder / name).write_bytes(files[name])
