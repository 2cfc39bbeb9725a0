"""Archives of thirty checkpoints, each made by the library whose format it is."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from sdc_guard import Guard

COUNT = 30


def _training() -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def _each(save: Callable[[int, dict[str, Any], dict[str, Any]], object]) -> None:
    """Train, and save after each step: the step, and state dictionaries."""
    model, optimizer, step = _training()
    for number in range(1, COUNT + 1):
        step()
        save(number, dict(model.state_dict()), optimizer.state_dict())


def torch_zip(folder: Path) -> Path:
    def save(step: int, model: Any, optimizer: Any) -> None:
        content = {"model": model, "optimizer": optimizer, "step": step}
        torch.save(content, folder / f"ckpt_{step}.pt")

    _each(save)
    return folder


def torch_legacy(folder: Path) -> Path:
    def save(step: int, model: Any, optimizer: Any) -> None:
        content = {"model": model, "optimizer": optimizer, "step": step}
        file = folder / f"ckpt_{step}.pt"
        torch.save(content, file, _use_new_zipfile_serialization=False)

    _each(save)
    return folder


def lightning(folder: Path) -> Path:
    import lightning_parts as parts
    from lightning.pytorch.callbacks import ModelCheckpoint

    # because it counts processors and warns of few
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    saving = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, save_last=True)
    trainer = parts.trainer_of(folder, saving, max_steps=COUNT, enable_checkpointing=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(parts.line_of(parts.pl.LightningModule)(), parts.loader(parts.data(COUNT)))
    return folder


def hf_trainer(folder: Path) -> Path:
    import trainer_parts as parts

    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": COUNT}
    parts.trainer_of(folder, parts.tiny_llama(), parts.texts(60), **options).train()
    return folder


def safetensors(folder: Path) -> Path:
    def save(step: int, model: Any, _: Any) -> None:
        save_file(model, folder / f"model-{step}.safetensors", {"step": str(step)})

    _each(save)
    return folder


def safetensors_shards(folder: Path) -> Path:
    from huggingface_hub import save_torch_state_dict

    def save(step: int, model: Any, _: Any) -> None:
        inner = folder / f"step-{step}"
        inner.mkdir()
        save_torch_state_dict(model, inner, max_shard_size=600)

    _each(save)
    return folder


def _distributed(state: dict[str, Any], writer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.save(state, storage_writer=writer, no_dist=True)


def dcp_folders(folder: Path) -> Path:
    def save(step: int, model: Any, optimizer: Any) -> None:
        content = {"model": model, "optim": optimizer, "step": step}
        _distributed(content, FileSystemWriter(folder / f"step={step}"))

    _each(save)
    return folder


def dcp_hf(folder: Path) -> Path:
    def save(step: int, model: Any, _: Any) -> None:
        path = folder / f"step-{step}"
        _distributed(model, HuggingFaceStorageWriter(str(path), save_distributed=True))

    _each(save)
    return folder


def torchtitan(folder: Path) -> Path:
    """Its layout: the model's names at the top, beside the optimizer and the training's state."""

    def save(step: int, model: Any, optimizer: Any) -> None:
        content = {**model, "optimizer": optimizer, "train_state": {"step": torch.tensor(step)}}
        _distributed(content, FileSystemWriter(folder / f"step-{step}"))

    _each(save)
    return folder


def guard(folder: Path) -> Path:
    model, optimizer, step = _training()
    watching = Guard(model, optimizer, run=folder / "run", first_step=1)
    for number in range(1, COUNT + 1):
        step()
        watching.checkpoint({"model": model, "optimizer": optimizer}, number)
    watching.close()
    return folder / "run"
