"""Archives as accidents leave them, made by the libraries that write them and then damaged."""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file, save_model
from torch.distributed.checkpoint.filesystem import FileSystemWriter

STEPS = (100, 200, 300, 400, 500)
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a2146' * 8}\nsize 12965\n"


def state(step: int) -> dict[str, Any]:
    """Two tensors that are others at each step."""
    generator = torch.Generator().manual_seed(step)
    return {"w": torch.randn(64, 64, generator=generator), "b": torch.randn(64)}


def pt(folder: Path, steps: tuple[int, ...] = STEPS, **more: Any) -> Path:
    for step in steps:
        torch.save({**state(step), "step": step, **more}, folder / f"step-{step}.pt")
    return folder


def safetensors(folder: Path, steps: tuple[int, ...] = STEPS) -> Path:
    for step in steps:
        save_file(state(step), folder / f"step-{step}.safetensors", {"step": str(step)})
    return folder


def trainer(folder: Path, steps: tuple[int, ...] = STEPS) -> Path:
    """Folders as the Hugging Face Trainer leaves them."""
    for step in steps:
        inner = folder / f"checkpoint-{step}"
        inner.mkdir()
        save_file(state(step), inner / "model.safetensors", {"format": "pt"})
        torch.save({"state": {}, "param_groups": []}, inner / "optimizer.pt")
        torch.save({"last_epoch": step}, inner / "scheduler.pt")
        torch.save({"cpu": torch.get_rng_state()}, inner / "rng_state.pth")
        text = json.dumps({"global_step": step, "log_history": [{"loss": 1.0, "step": step}]})
        (inner / "trainer_state.json").write_text(text)
    return folder


def distributed(folder: Path, steps: tuple[int, ...] = STEPS, threads: int = 1) -> Path:
    """DCP directories; each thread writes a shard."""
    for step in steps:
        writer = FileSystemWriter(folder / f"step-{step}", thread_count=threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # because it warns that this is one process
            dcp.save({**state(step), "step": step}, storage_writer=writer, no_dist=True)
    return folder


def flip(path: Path, tensor: torch.Tensor, mask: int = 0x40) -> None:
    """Flip bits of the highest byte of a float32 tensor's element 7 in a file that holds it."""
    content = bytearray(path.read_bytes())
    place = content.find(tensor.contiguous().numpy().tobytes())
    assert place > 0
    content[place + 4 * 7 + 3] ^= mask
    path.write_bytes(content)


def cut(path: Path, keep: float) -> Path:
    """Keep so many bytes, or that share of them; a negative number takes them from the end."""
    size = path.stat().st_size
    kept = int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep
    os.truncate(path, kept)
    return path


def bad_crc(folder: Path) -> None:
    flip(pt(folder) / "step-300.pt", state(300)["w"])


def hole(folder: Path) -> None:
    pt(folder)
    path = folder / "step-300.pt"
    content = bytearray(path.read_bytes())
    place = content.find(state(300)["w"].numpy().tobytes()) + 4096
    content[place : place + 4096] = bytes(4096)
    path.write_bytes(content)


def cut_pt(keep: float) -> Callable[[Path], None]:
    return lambda folder: _discard(cut(pt(folder) / "step-300.pt", keep))


def cut_safetensors(keep: float) -> Callable[[Path], None]:
    return lambda folder: _discard(cut(safetensors(folder) / "step-300.safetensors", keep))


def _discard(_: object) -> None:
    pass


def partial_ckpt(folder: Path) -> None:
    """Lightning's files, one half written; last.ckpt is a copy of the newest."""
    for step in STEPS:
        content = {"global_step": step, "epoch": 0, "state_dict": state(step)}
        torch.save(content, folder / f"epoch=0-step={step}.ckpt")
    shutil.copy(folder / "epoch=0-step=500.ckpt", folder / "last.ckpt")
    cut(folder / "epoch=0-step=300.ckpt", 0.6)


def gap(folder: Path) -> None:
    flip(pt(folder, (100, 200, 400)) / "step-400.pt", state(400)["w"])


def no_trainer_state(folder: Path) -> None:
    (trainer(folder) / "checkpoint-300" / "trainer_state.json").unlink()


def trailing(folder: Path) -> None:
    with (safetensors(folder) / "step-300.safetensors").open("ab") as file:
        file.write(b"\0\0\0\0")


def no_tensors(folder: Path) -> None:
    save_file({}, folder / "step-7.safetensors", {"k": "v"})


class Tied(torch.nn.Module):
    """Two names of one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight


def tied(folder: Path) -> None:
    model = Tied()
    save_model(model, str(folder / "tied-1.safetensors"))
    torch.save(model.state_dict(), folder / "tied-1.pt")


def no_metadata(folder: Path) -> None:
    (distributed(folder) / "step-300" / ".metadata").unlink()


def shard(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        change(distributed(folder, threads=2) / "step-300" / "__0_1.distcp")

    return make


def two_numbers(folder: Path) -> None:
    trainer(folder, (600, 700, 800))
    inner = folder / "checkpoint-800" / "global_step799"
    inner.mkdir()
    torch.save({"module": state(799), "global_steps": 799}, inner / "mp_rank_00_model_states.pt")


def ranks(folder: Path) -> None:
    """DeepSpeed's folder of two ranks, of which one started anew."""
    inner = folder / "global_step500"
    inner.mkdir()
    for rank, step in enumerate((500, 0)):
        content = {"module": state(step), "global_steps": step}
        torch.save(content, inner / f"mp_rank_{rank:02}_model_states.pt")


def shuffled_times(folder: Path) -> None:
    steps = (900, 950, 1000, 1050, 1100)
    trainer(folder, steps)
    for place, step in enumerate(steps):
        inner = folder / f"checkpoint-{step}"
        if step >= 1000:
            flip(inner / "model.safetensors", state(step)["w"])
        os.utime(inner, (1e9 - place, 1e9 - place))


def disk_full(folder: Path) -> None:
    cut(pt(folder) / "step-300.pt", 704)


def pointer(name: str) -> Callable[[Path], None]:
    """A pointer of Git LFS in place of a file in a folder of step 7."""

    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(LFS)

    return make


def another_state(folder: Path) -> None:
    (trainer(folder) / "checkpoint-300" / "trainer_state.json").write_text('{"epochs": 3}')


class Config:
    """A class of a user's own, which nobody else has."""

    width = 3


def foreign_objects(folder: Path) -> None:
    pt(folder, config=Config())
    trainer(folder, (600,))
    random = {"numpy": np.random.RandomState(0).get_state(), "cpu": torch.get_rng_state()}
    torch.save(random, folder / "checkpoint-600" / "rng_state.pth")


def missing_shard(folder: Path) -> None:
    folder = folder / "step-7"
    folder.mkdir()
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    placed = {}
    for number, name in enumerate(names):
        save_file({f"w{number}": torch.randn(4)}, folder / name)
        placed[f"w{number}"] = name
    index = {"metadata": {"total_size": 48}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / names[1]).unlink()


def flip_record(file: Path, record: str, byte: int = 7) -> None:
    """Flip a bit in the content of a record of a torch.save file; its checksum stays.

    Byte 7, the highest of element 1 of a float32 tensor: bit 30.
    """
    with zipfile.ZipFile(file) as packed:
        (info,) = [one for one in packed.infolist() if one.filename.endswith(f"/{record}")]
    content = bytearray(file.read_bytes())
    at = info.header_offset
    lengths = [int.from_bytes(content[at + x : at + x + 2], "little") for x in (26, 28)]
    content[at + 30 + sum(lengths) + byte] ^= 0x40
    file.write_bytes(content)
