"""Saves of several processes, in which one is killed, hangs, or cannot write, at a chosen moment.

python archive_faults.py FOLDER CASE...

A case is NUMBER:WORLD:RANK:PHASE:FAULT. The processes train by themselves, without a collective, so
that those which are left go on; each case has a run of its own in FOLDER.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

STAGE, MEET, PLAN, WRITE, HALF, READ, ACK = "stage", "meet", "plan", "write", "half", "read", "ack"
ASSIGN, METADATA, MANIFEST, RENAME = "assign", "metadata", "manifest", "rename"
RENAMED, LATEST = "renamed", "latest"
PHASES = (STAGE, MEET, PLAN, WRITE, HALF, READ, ACK)
OF_RANK_0 = (ASSIGN, METADATA, MANIFEST, RENAME, RENAMED, LATEST)
KILL, STALL = "kill", "stall"
APART = "apart"  # this rank labels its part with another step; at the meeting alone
FAULTS = (KILL, STALL, "ENOSPC", "EIO", "EROFS")
SOUND, FAULTY, AFTER = 0, 1, 2  # steps that are saved
SIZE = 512
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "")
AT_ONCE = 6  # cases that run beside each other: they wait most of the time


@dataclass(frozen=True)
class Case:
    """One save with one fault; `number` is no other case's."""

    number: int
    world: int
    rank: int
    phase: str
    fault: str

    @classmethod
    def of(cls, text: str) -> Case:
        number, world, rank, phase, fault = text.split(":")
        return cls(int(number), int(world), int(rank), phase, fault)

    def __str__(self) -> str:
        return f"{self.number}:{self.world}:{self.rank}:{self.phase}:{self.fault}"

    @property
    def name(self) -> str:
        return str(self).replace(":", "-")


def happens(case: Case) -> None:
    """The fault; a file beside the run says that it happened."""
    (FOLDER / f"{case.name}.happened").touch()
    if case.fault == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if case.fault == STALL:
        time.sleep(2.0 if case.phase in (STAGE, MEET) else 1000)
        return
    raise OSError(getattr(errno, case.fault), os.strerror(getattr(errno, case.fault)))


def armed(case: Case) -> Any:
    """A patch by which the fault happens at the case's phase, on the case's rank."""
    from sdc_guard.archive.sharded import ack, commit, files, meeting, protocol, staging

    def before(function: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if when(*arguments):
                happens(case)
            return function(*arguments, **options)

        return wrapped

    def after(function: Callable[..., Any]) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            done = function(*arguments, **options)
            happens(case)
            return done

        return wrapped

    def apart(function: Callable[..., Any]) -> Any:
        def wrapped(meeting: Any, arrival: Any, patience: float) -> Any:
            (FOLDER / f"{case.name}.happened").touch()
            return function(meeting, replace(arrival, step=arrival.step - 1), patience)

        return wrapped

    def half(folder: Path, rank: int, *_: Any) -> Any:
        (folder / f"__{rank}_0.distcp").write_bytes(b"PK\3\4 cut off")
        happens(case)

    def named(start: str) -> Callable[..., bool]:
        return lambda _, path: path.name.startswith(start)

    places: dict[str, tuple[Any, str, Any]] = {
        STAGE: (staging.Stager, "stage", after),
        MEET: (meeting.Meeting, "agree", apart if case.fault == APART else before),
        PLAN: (ack.Ack, "publish", lambda f: before(f, named("plan"))),
        ASSIGN: (protocol, "publish_writes", before),
        WRITE: (protocol, "write_pieces", before),
        HALF: (protocol, "write_pieces", lambda _: half),
        READ: (files, "fsync_folder", after),
        ACK: (ack.Ack, "publish", lambda f: before(f, named("ack"))),
        METADATA: (commit, "write_metadata", before),
        MANIFEST: (commit.Manifest, "write", before),
        RENAME: (commit, "published", before),
        RENAMED: (commit, "published", after),
        LATEST: (commit, "publish_text", before),
    }
    owner, name, change = places[case.phase]
    return mock.patch.object(owner, name, change(getattr(owner, name)))


def train(case: Case, rank: int, run: Path) -> None:
    """Three steps, each saved; the fault is in the second save."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from sdc_guard import Guard, sharded_checkpoints
    from sdc_guard.archive.sharded import protocol

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{run}.store", rank=rank, world_size=case.world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mesh = init_device_mesh("cpu", (case.world,))
    guard = Guard(
        model, optimizer, run=run, policy="record", replicas_every=None, peers_every=None,
        digest_budget=None, probe_every=None, archive_format="dcp",
    )  # fmt: skip

    def step(number: int, *, wait: bool) -> Any:
        loss = model(torch.full((2, 8), float(number))).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        optimizer.zero_grad()
        marks = {str(n): torch.full((SIZE,), float(number)) for n in range(case.world)}
        part = torch.full((SIZE // case.world,), float(number))
        split = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
        objects = {"model": model, "optimizer": optimizer, "marks": marks, "split": split}
        return guard.checkpoint(objects, number, wait=wait)

    assert step(SOUND, wait=True) is not None, guard.health
    mocks = [
        mock.patch.object(sharded_checkpoints, "PATIENCE", 1.0),
        mock.patch.object(sharded_checkpoints, "AT_END", 0.5),
        mock.patch.object(sharded_checkpoints, "LIMIT", 1.2),
        mock.patch.object(protocol.write_part, "__defaults__", (1.2,)),
    ]
    for one in mocks:
        one.start()
    with armed(case) if rank == case.rank else contextlib.nullcontext():
        step(FAULTY, wait=False)
        guard.checkpoint_written(2.5)
    if case.fault not in (KILL, STALL):
        for one in mocks:
            one.stop()
    step(AFTER, wait=True)
    guard.close()


def forked(case: Case, rank: int, folder: Path) -> int:
    """Start one rank of a case; its process number."""
    pid = os.fork()
    if pid:
        return pid
    run = folder / case.name
    output = os.open(f"{run}.{rank}.output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        train(case, rank, run)
        code = 0
    except BaseException:  # noqa: BLE001 - because whatever it is must end the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    from distributed_launch import _train_once

    folder, cases = Path(sys.argv[1]), [Case.of(text) for text in sys.argv[2:]]
    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401 - because each fork would import it anew

    _train_once(folder / "first")
    waiting, running = list(reversed(cases)), {}
    while waiting or running:
        while waiting and len({case for case, _ in running.values()}) < AT_ONCE:
            case = waiting.pop()
            running |= {forked(case, rank, folder): (case, rank) for rank in range(case.world)}
        pid, status = os.wait()
        case, rank = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        (folder / f"{case.name}.{rank}.code").write_text(str(code))


if __name__ == "__main__":
    main()
