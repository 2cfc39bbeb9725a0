"""How long it takes to bring a checkpoint back: copying it, and loading it.

One run is saved in both formats. Then every way in turn, round after round, of the same bytes. A
plain copy is not synced by itself; `cp, then fsync` waits for the disk as a restore does. Files are
in the page cache, so that hashing and digests cost as much as they can beside the copy.
--slow reads the archive at that rate, as from a file system over a network: there a cache on a
local disk is worth what it saves. Medians, and the ratio to the first way in the same round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from machine import line, machine

from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.cache.cache import Cache
from sdc_guard.archive.recovery import copying
from sdc_guard.archive.recovery.candidates import candidates
from sdc_guard.archive.recovery.choice import newest_first
from sdc_guard.archive.recovery.restoring import Restored, restore
from sdc_guard.archive.sharded import load as sharded_load

WIDTH = 1024
Ways = dict[str, Callable[[], Any]]


def saved(folder: Path, megabytes: int, archive_format: str) -> Path:
    """A run of one step with one checkpoint of about so many megabytes."""
    torch.manual_seed(0)
    count = max(1, megabytes * 2**20 // (3 * 4 * WIDTH * (WIDTH + 1)))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    options: dict[str, Any] = {"policy": "record", "probe_every": None, "invariants_every": None}
    with Guard(
        model, optimizer, run=folder, archive_format=archive_format, digest_budget=None, **options
    ) as guard:
        loss = model(torch.ones(2, WIDTH)).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        guard.checkpoint({"model": model, "optimizer": optimizer}, 0)
    return folder


def synced(target: Path) -> None:
    """Wait for the disk."""
    for path in target.rglob("*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def copies(run: Path, folder: Path, jobs: int) -> Ways:
    """Ways to copy a checkpoint, each to a new folder."""
    source, target = candidates(run)[0].path, folder / "target"
    cache = Cache(folder / "cache", 1 << 40)

    def plain() -> None:
        shutil.copytree(source, target)

    def waited() -> None:
        plain()
        synced(target)

    def ours(**options: Any) -> Restored:
        return restore(newest_first(candidates(run)), target, **options)

    ours(cache=cache)  # fills it
    shutil.rmtree(target)
    return {
        "cp, then fsync": waited,
        "cp": plain,
        "restore, 1 thread": lambda: ours(jobs=1),
        f"restore, {jobs} threads": lambda: ours(jobs=jobs),
        f"restore by cache, {jobs} threads": lambda: ours(jobs=jobs, cache=cache),
    }


def loads(run: Path, folder: Path) -> Ways:
    """Ways to load a checkpoint into tensors that are there."""
    source = candidates(run)[0].path
    whole = load_checkpoint(source)
    objects = {name: whole[name] for name in ("model", "optimizer")}
    kept: dict[str, Any] = {"cache": folder / "cache", "cache_size": 1 << 40}
    cold: dict[str, Any] = {"cache": folder / "cold", "cache_size": 1 << 40}

    def by(threads: int) -> None:
        with mock.patch.object(sharded_load, "THREADS", threads):
            load_checkpoint(source, into=objects)

    def empty() -> None:
        shutil.rmtree(folder / "cold", ignore_errors=True)
        load_checkpoint(source, into=objects, **cold)

    if (source / ".metadata").exists():
        return {
            "dcp.load": lambda: dcp.load(objects, checkpoint_id=source),
            "load_checkpoint, 1 thread": lambda: by(1),
            "load_checkpoint, 8 threads": lambda: by(8),
            "load_checkpoint, an empty cache": empty,
            "load_checkpoint, by cache": lambda: load_checkpoint(source, into=objects, **kept),
        }
    return {
        "torch.load": lambda: torch.load(source / "state.pt", weights_only=True),
        "load_checkpoint": lambda: load_checkpoint(source),
        "load_checkpoint, by cache": lambda: load_checkpoint(source, **kept),
    }


def parts(run: Path, folder: Path, jobs: int, rounds: int) -> dict[str, float]:
    """Medians of a restore's parts, in seconds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        started = time.perf_counter()
        tried = list(newest_first(candidates(run)))
        chosen = time.perf_counter() - started
        done = restore(tried, folder / "parts", jobs=jobs)
        shutil.rmtree(folder / "parts")
        for part, spent in ({"choice": chosen} | done.seconds).items():
            found.setdefault(part, []).append(spent)
    return {part: statistics.median(times) for part, times in found.items()}


@contextmanager
def slow(run: Path, rate: float) -> Iterator[None]:
    """The run's own files are read at so many bytes a second and thread, by restore."""
    read = copying.os.preadv
    inside = {path.stat().st_ino for path in run.rglob("*") if path.is_file()}

    def at_that_rate(descriptor: int, rooms: list[memoryview], first: int) -> int:
        if os.fstat(descriptor).st_ino in inside:
            time.sleep(sum(map(len, rooms)) / rate)
        return read(descriptor, rooms, first)

    with mock.patch.object(copying.os, "preadv", at_that_rate):
        yield


def measured(ways: Ways, rounds: int, target: Path) -> dict[str, list[float]]:
    """Seconds of each way; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            took = time.perf_counter() - started
            shutil.rmtree(target, ignore_errors=True)
            if number:
                seconds[name].append(took)
    return seconds


def table(seconds: dict[str, list[float]], size: int) -> None:
    """Print medians, and the medians of ratios within a round."""
    base = next(iter(seconds))
    print(f"| | ms | GB/s | of {base} |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        median = statistics.median(times)
        ratio = statistics.median(a / b for a, b in zip(times, seconds[base], strict=True))
        print(f"| {name} | {1e3 * median:.0f} | {size / median / 1e9:.2f} | {ratio:.2f} |")
    print()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="of parameters and moments")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--slow", type=float, help="bytes a second of a thread from the archive")
    parser.add_argument("--folder", type=Path, help="where to save; a temporary one by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # because DCP warns of its own calls
    print(line(machine() | {"torch": torch.__version__}))
    for archive_format in ("torch", "dcp"):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            folder = Path(name)
            run = saved(folder / "run", arguments.megabytes, archive_format)
            one = candidates(run)[0]
            size = sum(file.bytes for file in one.files)
            print(f"\n{archive_format}: {size / 1e6:.0f} MB, {len(one.files)} files\n")
            table(
                measured(copies(run, folder, arguments.jobs), arguments.rounds, folder / "target"),
                size,
            )
            found = parts(run, folder, arguments.jobs, arguments.rounds)
            print(", ".join(f"{part} {1e3 * spent:.0f} ms" for part, spent in found.items()))
            print()
            table(measured(loads(run, folder), arguments.rounds, folder / "target"), size)
            if arguments.slow:
                ways = copies(run, folder, arguments.jobs)
                ways = {name: way for name, way in ways.items() if name.startswith("restore")}
                with slow(run, arguments.slow):
                    table(measured(ways, arguments.rounds, folder / "target"), size)


if __name__ == "__main__":
    main()
