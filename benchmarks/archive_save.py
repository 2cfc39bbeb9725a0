"""How long a training stands still for a checkpoint, and how long loading it takes.

One process in a group of its own, as torch's asynchronous saves need one. Every way in turn, round
after round, of the same state: an asynchronous save stands still for the copy, a synchronous one
until all is on disk (and, with a guard, read back). "guard, all digests" digests everything at
each step; "guard" as its budget has it, and the rest at the checkpoint. Medians, and the ratio to
torch's own in the same round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from machine import line, machine
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from sdc_guard import Guard, load_checkpoint

WIDTH = 1024


class Subject:
    """A model whose training is short beside its state: parameters and Adam's moments."""

    def __init__(self, megabytes: int, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        count = max(1, megabytes * 2**20 // (3 * 4 * WIDTH * (WIDTH + 1)))
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.run, self.guard = folder, None
        if options:
            self.guard = Guard(
                self.model, self.optimizer, run=folder, policy="record", archive_format="dcp",
                probe_every=None, invariants_every=None, **options,
            )  # fmt: skip
        self.step = -1

    def train(self) -> None:
        self.step += 1
        loss = self.model(torch.ones(2, WIDTH)).square().mean()
        loss.backward()
        if self.guard is not None:
            self.guard.observe(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def bytes(self) -> int:
        return 3 * sum(p.numel() * p.element_size() for p in self.model.parameters())


def stalls(megabytes: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each call, by way."""
    subjects = {
        "torch": Subject(megabytes, folder / "torch"),
        "guard": Subject(megabytes, folder / "guard", digest_budget=0.2),
        "guard, all digests": Subject(megabytes, folder / "all", digest_budget=None),
    }
    stager = DefaultStager(StagingOptions(False, False, False, False))  # used again
    target = folder / "dcp"

    def plain(subject: Subject) -> Callable[[], Any]:
        dcp.save(subject.state(), checkpoint_id=target)
        return lambda: None

    def in_background(subject: Subject) -> Callable[[], Any]:
        return dcp.async_save(subject.state(), checkpoint_id=target).result

    def used_again(subject: Subject) -> Callable[[], Any]:
        return dcp.async_save(subject.state(), checkpoint_id=target, async_stager=stager).result

    def guarded(subject: Subject, *, wait: bool) -> Callable[[], Any]:
        assert subject.guard is not None
        objects = {"model": subject.model, "optimizer": subject.optimizer}
        subject.guard.checkpoint(objects, subject.step, wait=wait)
        return subject.guard.checkpoint_written

    ways: dict[str, tuple[str, Callable[[Subject], Callable[[], Any]]]] = {
        "dcp.async_save": ("torch", in_background),
        "dcp.async_save, one stager": ("torch", used_again),
        "guard, wait=False": ("guard", lambda one: guarded(one, wait=False)),
        "guard, all digests, wait=False": (
            "guard, all digests", lambda one: guarded(one, wait=False)
        ),
        "dcp.save": ("torch", plain),
        "guard": ("guard", lambda one: guarded(one, wait=True)),
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (whose, save) in ways.items():
            subject = subjects[whose]
            subject.train()
            started = time.perf_counter()
            ended = save(subject)
            took = time.perf_counter() - started
            ended()
            if number:  # the first makes buffers, and compiles
                seconds[name].append(took)
            _forget(subject, target, keep=name == "guard" and number == rounds)
    for subject in subjects.values():
        if subject.guard is not None:
            subject.guard.close()
    stager.close()
    return seconds


def _forget(subject: Subject, target: Path, *, keep: bool) -> None:
    """Delete what was saved: a disk that is full, or busy with it, is not what is measured."""
    shutil.rmtree(target, ignore_errors=True)
    if not keep:
        for folder in (subject.run / "archive").glob("step=*"):
            shutil.rmtree(folder)


def loads(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of loading what a guard saved, into tensors that are there."""
    (saved,) = (folder / "guard" / "archive").glob("step=*")
    whole = load_checkpoint(saved)
    objects = {name: whole[name] for name in ("model", "optimizer")}
    ways: dict[str, Callable[[], Any]] = {
        "dcp.load": lambda: dcp.load(objects, checkpoint_id=saved),
        "load_checkpoint": lambda: load_checkpoint(saved, into=objects),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, load in ways.items():
            started = time.perf_counter()
            load()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def table(seconds: dict[str, list[float]], size: int, base: str) -> None:
    """Print medians, and the medians of ratios within a round."""
    print(f"| | ms | GB/s | of {base} |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        median = statistics.median(times)
        ratio = statistics.median(
            one / other for one, other in zip(times, seconds[base], strict=True)
        )
        print(f"| {name} | {1e3 * median:.0f} | {size / median / 1e9:.1f} | {ratio:.2f} |")


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="of parameters and moments")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to save; a temporary one by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # because DCP warns of its own calls
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        dist.init_process_group("gloo", init_method=f"file://{folder / 's'}", rank=0, world_size=1)
        seconds = stalls(arguments.megabytes, arguments.rounds, folder)
        loaded = loads(folder, arguments.rounds)
        size = Subject(arguments.megabytes, folder).bytes
        dist.destroy_process_group()
    print(line(machine() | {"torch": torch.__version__}))
    print(f"{size / 1e6:.0f} MB")
    print()
    table(
        {n: s for n, s in seconds.items() if n not in ("dcp.save", "guard")}, size, "dcp.async_save"
    )
    print()
    table({n: seconds[n] for n in ("dcp.save", "guard")}, size, "dcp.save")
    print()
    table(loaded, size, "dcp.load")


if __name__ == "__main__":
    main()
