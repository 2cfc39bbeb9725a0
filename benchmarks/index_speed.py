"""Seconds that `sdc-bisect index` takes for a thousand checkpoints of each kind of folder.

    python benchmarks/index_speed.py --folder /scratch/index
    python benchmarks/index_speed.py --folder /scratch/index --count 200 --rounds 3

One small checkpoint of each kind is made by its library and linked as often as is asked for, the
number in the name counting up; of DCP each has a `.metadata` of its own, which says another save.
The whole command's work is measured, without the start of Python; the kinds take turns in each
round. Printed is the median of the rounds.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import time
import uuid
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from machine import line, machine
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from forensics.index import index
from forensics.spacing import duplicates, gaps


def state() -> dict[str, torch.Tensor]:
    """A hundred small tensors."""
    return {f"layer.{i}.weight": torch.randn(16, 16) for i in range(100)}


def one_of(kind: str, folder: Path) -> str:
    """Make one checkpoint; what its copies are to be named."""
    folder.mkdir(parents=True)
    if kind == "torch":
        torch.save(state(), folder / "one.pt")
        return "step-{}.pt"
    if kind == "safetensors":
        save_file(state(), folder / "one.safetensors")
        return "step-{}.safetensors"
    inner = folder / "one"
    if kind == "dcp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state(), storage_writer=FileSystemWriter(inner), no_dist=True)
        return "step-{}"
    inner.mkdir()
    save_file(state(), inner / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": {}}, inner / name)
    (inner / "trainer_state.json").write_text('{"global_step": 1, "log_history": []}')
    return "checkpoint-{}"


def make(kind: str, folder: Path, count: int) -> Path:
    """A folder of `count` checkpoints."""
    name = one_of(kind, folder / "made")
    (source,) = (folder / "made").iterdir()
    target = folder / "archive"
    target.mkdir()
    for number in range(1, count + 1):
        place = target / name.format(number)
        if source.is_dir():
            shutil.copytree(source, place, copy_function=lambda a, b: Path(b).hardlink_to(a))
            if kind == "dcp":
                _another_save(place / ".metadata")
        else:
            place.hardlink_to(source)
    return target


def _another_save(metadata: Path) -> None:
    """Give it an identity of its own, as each save of DCP has."""
    content = metadata.read_bytes()
    known = pickle.loads(content).storage_meta.save_id.encode()
    metadata.unlink()  # the others keep theirs
    metadata.write_bytes(content.replace(known, str(uuid.uuid4()).encode()))


def main() -> None:
    """Print seconds by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty one to write to")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    kinds = ("torch", "safetensors", "dcp", "hf-trainer")
    made = {kind: make(kind, asked.folder / kind, asked.count) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(asked.rounds):
        for kind, path in made.items():
            start = time.perf_counter()
            found = index(path)
            gaps([one.step for one in found])
            duplicates(found)
            seconds[kind].append(time.perf_counter() - start)
            assert len(found) == asked.count
    print(line(machine()))
    for kind, taken in seconds.items():
        print(f"{kind:<12} {asked.count:,} checkpoints in {float(np.median(taken)):.2f} s")


if __name__ == "__main__":
    main()
