"""Bytes a second that `sdc-bisect scan` reads, beside a plain read of the same files with xxh3.

    python benchmarks/scan_speed.py --folder /scratch/scan
    python benchmarks/scan_speed.py --folder /scratch/scan --gb 4 --files 8 --rounds 5 --drop

Writes an archive of each kind that is named by --kinds, then in each round reads it with each arm
in an order drawn anew, so that what slows the machine for a while slows all. The plain read is one
thread that reads every file into one buffer and hashes it; of the disk the pages are dropped before
each arm with --drop (they are the files' own: no permission is needed), else they are in memory.
Printed are GB (10^9 bytes) a second, the median of the rounds, and of the ratios to the plain read
in the same round the median, the least and the most. What is compiled or opened once in a process
is done before the first round.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import xxhash
from machine import line, machine
from safetensors.torch import save_file

from forensics.index import index
from forensics.scanning import scanned
from sdc_guard import Guard

PIECE = 4 << 20


def state(size: int, seed: int) -> dict[str, torch.Tensor]:
    """About `size` bytes of weights, in sixteen tensors."""
    generator = torch.Generator().manual_seed(seed)
    side = max(1, size // 16 // 4 // 4096)
    return {f"layer.{i}.weight": torch.randn(side, 4096, generator=generator) for i in range(16)}


def make(kind: str, folder: Path, files: int, size: int) -> Path:
    """An archive of that kind."""
    folder.mkdir(parents=True)
    if kind == "guard":
        return _guarded(folder, files, size)
    for step in range(1, files + 1):
        content = state(size, step)
        if kind == "torch":
            torch.save({**content, "step": step}, folder / f"step-{step}.pt")
        else:
            save_file(content, folder / f"step-{step}.safetensors")
    return folder


def _guarded(folder: Path, files: int, size: int) -> Path:
    model = torch.nn.ParameterList(torch.nn.Parameter(x) for x in state(size, 0).values())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, run=folder / "run", first_step=1)
    for step in range(1, files + 1):
        sum(x.mean() for x in model).backward()
        optimizer.step()
        optimizer.zero_grad()
        guard.checkpoint({"model": model}, step)
    guard.close()
    return folder / "run"


def files_of(path: Path) -> list[Path]:
    """The files of an archive's checkpoints."""
    places = [one.path for one in index(path)]
    return [y for x in places for y in ([x] if x.is_file() else x.iterdir()) if y.is_file()]


def plain(path: Path) -> None:
    """Read every file once, with xxh3."""
    buffer = memoryview(bytearray(PIECE))
    for file in files_of(path):
        found = xxhash.xxh3_64()
        with file.open("rb", buffering=0) as content:
            while count := content.readinto(buffer):
                found.update(buffer[:count])


def scan(path: Path, statistics: bool | None, jobs: int) -> None:
    """What the command does."""
    answers = scanned(index(path), jobs, statistics=statistics)
    assert all(one.status in ("clean", "untested") for one in answers), answers


def drop(path: Path) -> None:
    """Forget the files' pages, so that the next arm reads the disk."""
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measured(path: Path, rounds: int, jobs: int, cold: bool) -> dict[str, list[float]]:
    """Seconds of each arm in each round."""
    arms: dict[str, Callable[[], None]] = {
        "plain read, xxh3": lambda: plain(path),
        "scan --no-statistics": lambda: scan(path, False, jobs),
        "scan": lambda: scan(path, None, jobs),
        "scan --statistics": lambda: scan(path, True, jobs),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order, draw = list(arms), random.Random(0)
    for arm in arms.values():
        arm()
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            if cold:
                drop(path)
            start = time.perf_counter()
            arms[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print a table for each kind of archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty one to write to")
    parser.add_argument("--gb", type=float, default=1)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--kinds", default="torch,safetensors,guard")
    parser.add_argument("--drop", action="store_true", help="read the disk, not memory")
    asked = parser.parse_args()
    print(line(machine()))
    for kind in asked.kinds.split(","):
        path = make(kind, asked.folder / kind, asked.files, int(asked.gb * 1e9 / asked.files))
        size = sum(file.stat().st_size for file in files_of(path))
        seconds = measured(path, asked.rounds, asked.jobs, asked.drop)
        base = np.array(seconds["plain read, xxh3"])
        print(f"\n{kind}: {size / 1e9:.2f} GB in {asked.files}, {asked.jobs} jobs")
        for name, taken in seconds.items():
            speed = size / float(np.median(taken)) / 1e9
            ratios = base / np.array(taken)
            spread = f"{ratios.min():.2f} to {ratios.max():.2f}"
            ratio = float(np.median(ratios))
            print(f"  {name:<22} {speed:6.2f} GB/s  {ratio:5.2f} of the plain read ({spread})")


if __name__ == "__main__":
    main()
