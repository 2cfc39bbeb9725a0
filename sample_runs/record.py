"""Makes the recorded runs again: six small trainings, in five of which something goes wrong.

    python sample_runs/record.py                          # all, in place
    python sample_runs/record.py weight_flip --to /tmp/x  # one, elsewhere

For each there is a run's folder, and beside it NAME.truth.json: what was done, which no command
ever reads. Another time gives the same steps, tensors and bits, not the same bytes: times differ,
and on another processor so do the last bits of what is computed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from small_text import Plan, train

from sdc_guard.inject.fault import Fault, InjectionRecord, Touched
from sdc_guard.inject.file import corrupt_file
from sdc_guard.store.sealing import GRACE_SECONDS, seal_run

HERE = Path(__file__).resolve().parent
ROOM = 1.0  # seconds on top of the grace of readers, for clocks that are coarse


@dataclass(frozen=True)
class Recorded:
    """A run to record.

    Attributes:
        what: what goes wrong, in words.
        plan: its training.
        ranks: processes that train.
        file: a fault in the file of a checkpoint, after the training.
    """

    what: str
    plan: Plan
    ranks: int = 1
    file: Fault | None = None


RUNS: dict[str, Recorded] = {
    "clean": Recorded("nothing", Plan(seed=1)),
    "weight_flip": Recorded(
        "one bit of a weight flips in memory, between two steps",
        Plan(seed=2, fault=Fault("weight", 74, "blocks.1.qkv.weight", 77, bit=22)),
    ),
    "gradient_flip": Recorded(
        "one bit of a gradient flips on rank 1 of two, after the gradients were averaged",
        Plan(seed=3, fault=Fault("reduced_gradient", 67, "blocks.0.up.weight", 130, 30, rank=1)),
        ranks=2,
    ),
    "storage_fault": Recorded(
        "one bit of a checkpoint's file flips on the disk, after it was written",
        Plan(seed=4),
        file=Fault("file", 60, "model.blocks.0.down.weight", 9, bit=27),
    ),
    "bad_batch": Recorded(
        "one batch was read at a wrong offset of the data, once", Plan(seed=5, bad_batch=88)
    ),
    "loss_spike": Recorded(
        "the schedule has a learning rate 60 times too large at one step; no hardware is at fault",
        # later than the others' faults: a statistic needs a past that is level to judge by
        Plan(seed=6, rate_spike=185, steps=200, every=40),
    ),
}


def record(names: Sequence[str], to: Path) -> None:
    """Record these runs into a folder, in place of what is there under their names."""
    _leave_out_this_machine()
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        truths = {name: _train(RUNS[name], Path(made) / name) for name in names}
        time.sleep(GRACE_SECONDS + ROOM)
        for name in names:
            run = Path(made) / name
            seal_run(run)  # removes the segments that the seals of the closed run have in them
            truth = truths[name] | _damage(RUNS[name], run)
            _tidy(run)
            shutil.rmtree(to / name, ignore_errors=True)
            shutil.copytree(run, to / name)
            text = json.dumps(truth, indent=1) + "\n"
            (to / f"{name}.truth.json").write_text(text, encoding="utf-8")


def _leave_out_this_machine() -> None:
    """A guard records the host's name, to tell a replay elsewhere; it says nothing to others."""
    socket.gethostname = lambda: "sample"


def _train(recorded: Recorded, run: Path) -> dict[str, Any]:
    """Train; what was done, as JSON knows it."""
    plan = recorded.plan
    records = train(plan, run) if recorded.ranks == 1 else _on_ranks(recorded, run)
    return {
        "what": recorded.what,
        "seed": plan.seed,
        "ranks": recorded.ranks,
        "steps": plan.steps,
        "checkpoint_every": plan.every,
        "step": plan.bad_batch or plan.rate_spike or (plan.fault.step if plan.fault else None),
        "injected": [_told(record) for record in records],
    }


def _told(record: InjectionRecord) -> dict[str, Any]:
    told = {"site": record.site, "tensor": record.tensor, "rank": record.rank}
    return told | {"elements": _elements(record.touched)}


def _elements(touched: Sequence[Touched]) -> list[dict[str, Any]]:
    return [
        {"index": one.index, "bits": one.bits, "before": one.before, "after": one.after}
        for one in touched
    ]


def _on_ranks(recorded: Recorded, run: Path) -> list[InjectionRecord]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with context.Pool(recorded.ranks) as pool:
            store = f"file://{folder}/store"
            asked = [(recorded, run, rank, store) for rank in range(recorded.ranks)]
            found = pool.starmap(_on_rank, asked, chunksize=1)
    return [record for records in found for record in records]


def _on_rank(recorded: Recorded, run: Path, rank: int, store: str) -> list[InjectionRecord]:
    _leave_out_this_machine()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=recorded.ranks)
    try:
        return train(recorded.plan, run)
    finally:
        dist.destroy_process_group()


def _damage(recorded: Recorded, run: Path) -> dict[str, Any]:
    """Corrupt the file that is to be corrupt."""
    if recorded.file is None:
        return {}
    name = f"archive/step={recorded.file.step:06d}/state.pt"
    done = corrupt_file(run / name, recorded.file, recorded.plan.seed)
    (run / f"{name}.injected.json").unlink()  # the truth is not for those who search
    told = {"site": "file", "tensor": done.tensor, "elements": _elements(done.touched)}
    return {"step": recorded.file.step, "file": name, "injected": [told]}


def _tidy(run: Path) -> None:
    """Remove what a run that has ended needs no more: locks, and a ring that is empty."""
    for hidden in (run / "trace").glob(".*"):
        remove: Callable[[Path], object] = shutil.rmtree if hidden.is_dir() else Path.unlink
        remove(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--to", type=Path, default=HERE / "recorded", help="the folder for them")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in RUNS]:
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(RUNS)}")
    record(args.names or list(RUNS), args.to)


if __name__ == "__main__":
    main()
