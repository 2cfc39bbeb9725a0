"""Small archives of each format, and single bits of their files."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from sdc_guard import Guard

STEPS = tuple(range(10, 130, 10))


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"a.w": torch.randn(4, 3, generator=generator), "b": torch.randn(3, generator=generator)}


def guarded(folder: Path) -> Path:
    """A guard's run of twelve checkpoints."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run=folder, first_step=STEPS[0])
    for step in range(STEPS[0], STEPS[-1] + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step in STEPS:
            guard.checkpoint({"model": model, "optimizer": optimizer}, step)
    guard.close()
    return folder


def torch_zip(folder: Path, step: int) -> None:
    torch.save({**state(step), "step": step}, folder / f"step-{step}.pt")


def torch_legacy(folder: Path, step: int) -> None:
    content = {**state(step), "step": step}
    torch.save(content, folder / f"step-{step}.pt", _use_new_zipfile_serialization=False)


def safetensors(folder: Path, step: int) -> None:
    save_file(state(step), folder / f"step-{step}.safetensors", {"step": str(step)})


def distributed(folder: Path, step: int) -> None:
    content = {"model": state(step), "w": torch.ones(2), "step": step}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        writer = FileSystemWriter(folder / f"step-{step}")
        dcp.save(content, storage_writer=writer, no_dist=True)


SAVERS: dict[str, Callable[[Path, int], None]] = {
    "torch": torch_zip,
    "legacy": torch_legacy,
    "safetensors": safetensors,
    "dcp": distributed,
}


def archive(folder: Path, kind: str) -> Path:
    """Twelve checkpoints of that format."""
    folder.mkdir()
    for step in STEPS:
        SAVERS[kind](folder, step)
    return folder


def files_of(checkpoint: Path) -> list[Path]:
    if checkpoint.is_file():
        return [checkpoint]
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@contextmanager
def flipped(checkpoint: Path, draw: random.Random) -> Iterator[str]:
    """One bit anywhere in a checkpoint's files is the other one, for a while; where that is."""
    files = files_of(checkpoint)
    (path,) = draw.choices(files, [file.stat().st_size for file in files])
    sound, times = path.read_bytes(), path.stat()
    content = bytearray(sound)
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        yield f"{path.name}: bit {bit} of byte {place}"
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
