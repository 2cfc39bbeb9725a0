"""What the comparison of replicas costs the training's thread.

    python benchmarks/replica_check.py [--ranks 2] [--checks 200] [gpt-1m mlp ...]

Starts its own processes, with DistributedDataParallel on gloo. Between two checks each rank really
trains a step, so that the digests' code is no warmer than it is in a training.

How to read it: `check` is the median time that `step_ended` takes at the cadence, which is mostly
the digests of parameters and moments, at `GB/s`; `else` the median at the other steps; `share` is
what one check in 100 steps (the default) adds to the training. `answer` is the median time from a
check until its result is known, during which the training goes on. All on rank 0.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hook_models import TASKS, loss_fn
from machine import line, machine
from torch.nn.parallel import DistributedDataParallel

from sdc_guard.checks.replicas.check import ReplicaCheck
from sdc_guard.ranks import Ranks
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.state import CarriedState

_EVERY = 100


class Nobody:
    """Takes what the check tells; there must be nothing."""

    def report(self, alerts: list[Any]) -> None:
        raise AssertionError(alerts)

    def event(self, step: int, kind: str, detail: str) -> None:
        raise AssertionError((step, kind, detail))


def timed(do: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def measure(name: str, checks: int) -> str:
    """One line of the table, on every rank."""
    torch.manual_seed(0)
    task = TASKS[name]
    model = DistributedDataParallel(task.make_model())
    optimizer = torch.optim.AdamW(model.parameters())
    batch = task.make_batch()
    state = CarriedState(model_layers(model), [optimizer], set())
    check = ReplicaCheck(Nobody(), model, lambda: state, Ranks(Path(name)), 4)
    outcomes = check._thread
    steps, at, other, answers = [], [], [], []

    def train() -> None:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(4 * checks):
        steps.append(timed(train))
        seconds = timed(lambda step=step: check.step_ended(step))  # type: ignore[misc]
        (other if step % 4 else at).append(seconds)
        if step % 4 == 0:
            begun = time.perf_counter()
            while outcomes.waiting and outcomes._done.empty():
                time.sleep(0.0002)
            answers.append(time.perf_counter() - begun)
    check.close()
    size = sum(state.sizes().values())
    check_s, other_s, step_s = map(statistics.median, (at[1:], other[1:], steps[1:]))
    share = check_s / (_EVERY * step_s) + other_s / step_s
    return (
        f"{task.title:<12}{size / 1e6:>8.1f}{1e3 * step_s:>9.1f}{1e3 * check_s:>10.3f}"
        f"{size / check_s / 1e9:>7.1f}{1e6 * other_s:>9.1f}{100 * share:>9.4f}"
        f"{1e3 * statistics.median(answers):>9.1f}"
    )


def worker(rank: int, ranks: int, port: int, checks: int, tasks: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    for name in tasks:
        told = measure(name, checks)
        if rank == 0:
            print(told, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=["gpt-1m", "mlp", "gpt-21m"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--worker", type=int, nargs=2, metavar=("RANK", "PORT"))
    given = parser.parse_args()
    if given.worker:
        worker(given.worker[0], given.ranks, given.worker[1], given.checks, given.tasks)
        return
    print(line(machine()))
    print(f"{given.ranks} ranks, {given.checks} checks each, medians on rank 0")
    print("model       state MB  step ms  check ms   GB/s  else µs  share %  answer ms")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *given.tasks, "--ranks", str(given.ranks)]
    command += ["--checks", str(given.checks)]
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, "--worker", str(rank), str(port)], env=environment)
        for rank in range(given.ranks)
    ]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
