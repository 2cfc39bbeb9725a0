"""Trainings on several processes, each of them started once for all that is tested of them.

python distributed_launch.py RANK WORLD FOLDER TIMEOUT SCENARIO...
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
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
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = []
    for rank in range(world):
        arguments = [rank, world, folder, timeout, *scenarios]
        with (folder / f"output.{rank}").open("w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, *map(str, arguments)],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            )
    return Outcome(folder, world, _wait(processes, folder))


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> tuple[int | None, ...]:
    ended, since = 0, time.monotonic()
    while any(process.poll() is None for process in processes):
        now = len(list(folder.glob("*.pickle")))
        if now > ended:
            ended, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            break
        time.sleep(0.05)
    codes = tuple(process.poll() for process in processes)
    for process in processes:
        process.kill()
        process.wait()
    return codes


def _scenario(name: str) -> Any:
    for module in MODULES:  # no further than needed: an import may take a second
        found = getattr(importlib.import_module(f"distributed_{module}"), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    folder, timeout = Path(sys.argv[3]), float(sys.argv[4])
    import torch
    import torch.distributed as dist
    from distributed_training import Here, bits, differences

    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=limit)
    for name in sys.argv[5:]:
        print(f"=== {name}", flush=True)
        try:
            plain = _scenario(name)(Here(rank, world, None))
            told = _scenario(name)(Here(rank, world, folder / name))
        except Exception:  # noqa: BLE001 - because whatever it is must end the process
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)  # at once: the others would wait for this one
        state = told.pop("state")
        told |= {"differences": differences(plain["state"], state), "bits": bits(state)}
        (folder / f"{name}.{rank}.pickle").write_bytes(pickle.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
