"""Trainings on several processes, each of them started once for all that is tested of them.

python distributed_launch.py WORLD FOLDER TIMEOUT SCENARIO...

One process imports torch and what the scenarios need, and forks the ranks: on a small machine the
imports of four ranks take longer than what is tested.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "replicas",
    "shards",
    "meshes",
    "pipeline",
    "troubles",
    "audits",
    "disagreement",
    "injections",
    "peers",
    "saves",
    "archive",
    "seals",
    "libraries",
)
PATIENCE = 100.0  # seconds without a scenario that ends: a hang, and not a loaded machine


@dataclass(frozen=True)
class Outcome:
    """What the processes left: a pickle for each scenario and rank, and the guard's runs."""

    folder: Path
    world: int
    codes: tuple[int | None, ...]

    def told(self, scenario: str, rank: int) -> Any:
        """What a rank tells of a scenario; fails with all ranks' output if it tells nothing."""
        path = self.folder / f"{scenario}.{rank}.pickle"
        assert path.exists(), f"rank {rank} did not end {scenario}\n{self.output()}"
        return pickle.loads(path.read_bytes())

    def run(self, scenario: str) -> Path:
        """The run's folder."""
        return self.folder / scenario

    def output(self) -> str:
        """The end of what each rank printed, and its exit code; None: killed for hanging."""
        return "\n".join(
            f"--- rank {rank}, exit code {code}\n{self.printed(rank)[-4000:]}"
            for rank, code in enumerate(self.codes)
        )

    def printed(self, rank: int) -> str:
        """All that a rank printed and logged."""
        return (self.folder / f"output.{rank}").read_text(encoding="utf-8")


def launch(folder: Path, world: int, scenarios: Sequence[str], timeout: float = 60.0) -> Outcome:
    """Run scenarios one after the other on `world` processes.

    Args:
        folder: gets all files.
        timeout: of the process group, in seconds.
    """
    import preloaded  # not where this is the script: the ranks have it not in their path

    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    arguments = [preloaded.python(), __file__, world, folder, timeout, *scenarios]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    _wait(process, folder)
    return Outcome(folder, world, _codes(folder, world))


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    ended, since = 0, time.monotonic()
    while process.poll() is None:
        now = len(list(folder.glob("*.pickle")))
        if now > ended:
            ended, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # and with it ranks that hang
    process.wait()


def _codes(folder: Path, world: int) -> tuple[int | None, ...]:
    """The exit code of each rank; negative for a signal, None for one that was killed here."""
    files = [folder / f"code.{rank}" for rank in range(world)]
    return tuple(int(file.read_text()) if file.exists() else None for file in files)


def _scenario(name: str) -> Any:
    for module in MODULES:  # no further than needed: an import may take a second
        found = getattr(importlib.import_module(f"distributed_{module}"), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def main() -> None:
    world, folder, timeout, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    sys.path.append(str(ROOT / "tests"))  # as pytest has it, for what the scenarios import
    for name in names:
        _scenario(name)  # imports it, once for all ranks
    _train_once(folder / "first")
    ranks = {_forked(rank, world, folder, float(timeout), names): rank for rank in range(world)}
    for _ in range(world):
        pid, status = os.wait()
        (folder / f"code.{ranks[pid]}").write_text(str(os.waitstatus_to_exitcode(status)))


def _train_once(run: Path) -> None:
    """Load what is only loaded when it is needed, compiled code above all."""
    import torch

    from sdc_guard import Guard, RunReader

    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=run, policy="record") as guard:
        model(torch.ones(1, 2)).sum().backward()
        guard.observe(1.0, torch.ones(1, 2))
        optimizer.step()
    with RunReader(run) as reader:
        reader.rows("SELECT * FROM steps")
    assert threading.active_count() == 1  # a fork would not have the others


def _forked(rank: int, world: int, folder: Path, timeout: float, names: list[str]) -> int:
    """Start a rank; its process number."""
    pid = os.fork()
    if pid:
        return pid
    output = os.open(folder / f"output.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        _run(rank, world, folder, timeout, names)
        code = 0
    except BaseException:  # noqa: BLE001 - because whatever it is must end the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # at once: the others would wait for this one


def _run(rank: int, world: int, folder: Path, timeout: float, names: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from distributed_training import Here, bits, differences

    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=limit)
    for name in names:
        print(f"=== {name}", flush=True)
        told = _scenario(name)(Here(rank, world, folder / name))
        state = told.pop("state")
        # a training with a fault is not compared with anything
        plain = _scenario(name)(Here(rank, world, None))["state"] if state else {}
        told |= {"differences": differences(plain, state), "bits": bits(state)}
        (folder / f"{name}.{rank}.pickle").write_bytes(pickle.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
