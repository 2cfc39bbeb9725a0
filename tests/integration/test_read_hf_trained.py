"""Checkpoints of the Hugging Face Trainer as it writes them, read without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forensics.foreign_losses import read_losses
from forensics.readers import hf_state, safetensors_file, safetensors_shards
from forensics.readers.hf_trainer import READER
from sdc_guard.archive.save import tensors_in
from sdc_guard.digest.reference import words


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of four steps with a checkpoint of each second, and its Trainer."""
    import trainer_parts as hf

    folder = tmp_path_factory.mktemp("trained")
    trainer = hf.trainer_of(
        folder, hf.tiny_llama(), hf.texts(8), save_strategy="steps", save_steps=2
    )
    trainer.train()
    return folder, trainer


def same(found: Any, expected: dict[str, torch.Tensor], prefix: str = "") -> bool:
    for name, tensor in expected.items():
        stored = found.tensors[prefix + name]
        read = stored.read()
        assert read.dtype == stored.dtype == tensor.dtype
        assert read.shape == tensor.shape
        assert torch.equal(words(read), words(tensor)), name
    return True


def test_what_the_trainer_saved_is_what_is_read(trained: tuple[Path, Any]) -> None:
    folder, trainer = trained
    found = READER.find(folder)
    assert sorted(one.step for one in found) == [2, 4]
    for checkpoint in found:
        path = folder / f"checkpoint-{checkpoint.step}"
        assert checkpoint.path == path
        assert checkpoint.readable
        assert checkpoint.reasons == checkpoint.notes == ()
        assert checkpoint.named_step is None
        content = READER.open(checkpoint)
        assert content.step == checkpoint.step
        weights = load_file(path / "model.safetensors")
        assert same(content, weights)
        for name in ("optimizer", "scheduler"):
            state = torch.load(path / f"{name}.pt", weights_only=True)
            assert same(content, tensors_in(state), f"{name}.")
        assert any(name.startswith("optimizer.state.0.exp_avg") for name in content.tensors)
        assert any(name.startswith("rng_state.") for name in content.tensors)
        assert content.numbers["trainer_state.global_step"] == checkpoint.step
        assert "training_args.bin" in content.foreign
        integrity = READER.check(checkpoint)
        assert integrity.damaged == {}
        assert sorted(integrity.unchecked) == sorted(weights)
        assert "optimizer.state.0.exp_avg" in integrity.intact
    last = READER.open(next(one for one in found if one.step == 4))
    model = trainer.model
    assert same(last, {name: one.detach() for name, one in model.named_parameters()})
    assert same(last, load_file(folder / "checkpoint-4" / "model.safetensors"))
    for other in (safetensors_file.READER, safetensors_shards.READER):
        assert other.find(folder) == other.find(folder / "checkpoint-2") == []


def test_from_pretrained_in_shards(trained: tuple[Path, Any], tmp_path: Path) -> None:
    _, trainer = trained
    folder = tmp_path / "checkpoint-4"
    trainer.model.save_pretrained(folder, max_shard_size="2KB")
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    (checkpoint,) = READER.find(tmp_path)
    assert checkpoint.reasons == ()
    again = type(trainer.model).from_pretrained(folder)
    content = READER.open(checkpoint)
    assert same(content, {name: one.detach() for name, one in again.named_parameters()})
    assert len({file for one in content.tensors.values() for file in one.files}) > 1
    plain = folder.rename(tmp_path / "step-4")
    (plain / "trainer_state.json").unlink()
    (checkpoint,) = safetensors_shards.READER.find(plain)
    assert checkpoint.reasons == ()  # total_size and places are as the library writes them
    assert same(safetensors_shards.READER.open(checkpoint), load(plain))


def load(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: one for file in folder.glob("*.safetensors") for name, one in load_file(file).items()
    }


def test_losses_are_the_logged_ones_to_the_bit(trained: tuple[Path, Any]) -> None:
    folder, trainer = trained
    found = read_losses(folder / "checkpoint-4")
    logged = {
        row["step"]: (row["loss"], row["grad_norm"])
        for row in trainer.state.log_history
        if "loss" in row
    }
    assert dict(found.losses) == logged
    assert list(logged) == [1, 2, 3, 4]
    for loss, norm in logged.values():  # float32 numbers, in full
        assert loss == torch.tensor(loss).item()
        assert norm == torch.tensor(norm).item()
    assert not any("rounded" in note for note in found.notes)
    two = read_losses(folder / "checkpoint-2" / "trainer_state.json").losses
    assert dict(two) == {step: row for step, row in logged.items() if step <= 2}


def test_a_large_state_is_not_parsed_for_its_step(
    trained: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trainer = trained
    folder = tmp_path / "checkpoint-4"
    trainer.save_model(str(folder))
    state = trainer.state
    monkeypatch.setattr(state, "log_history", state.log_history * 2000)
    state.save_to_json(str(folder / "trainer_state.json"))
    text = (folder / "trainer_state.json").read_text()
    assert len(text) > 1 << 20
    with monkeypatch.context() as patched:
        patched.setattr(hf_state, "read_object", None)
        (checkpoint,) = READER.find(folder)
    assert (checkpoint.step, checkpoint.notes, checkpoint.reasons) == (4, (), ())
    assert READER.open(checkpoint).numbers["trainer_state.global_step"] == 4
    (folder / "trainer_state.json").write_text(text[:-3])
    (checkpoint,) = READER.find(folder)
    assert checkpoint.reasons == (
        f"trainer_state.json: JSON cut short after {len(text) - 3:,} characters",
    )
