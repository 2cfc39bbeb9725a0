"""Two trainings on several ranks; in the second one of them computes wrongly.

python known_answer_ranks.py RANK WORLD FOLDER FAULTY_RANK
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sdc_guard import Alert, Guard
from sdc_guard.signals.probe import Probe


class OneBit(TorchDispatchMode):
    """Flips one bit in the first element of every product of the probe's."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "mm":
            result.view(torch.int32).view(-1)[0] ^= 1 << 15
        return result


def train(run: Path) -> dict[str, Any]:
    """Six steps with a guard, and what it told."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alerts: list[Alert] = []
    guard = Guard(model, optimizer, run=run, policy="record", on_alert=alerts.append, probe_every=2)
    for step in range(6):
        loss = model(torch.full((2, 4), float(step))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    guard.close()
    dist.barrier()
    return {
        "alerts": [[alert.severity, alert.detail["kind"], alert.detail] for alert in alerts],
        "errors": guard.health.errors,
        "last_error": guard.health.last_error,
    }


def main(rank: int, world: int, folder: Path, faulty: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    told = {"sound": train(folder / "sound")}
    if rank == faulty:
        ask = Probe.ask

        def disturbed(probe: Probe) -> Any:
            with OneBit():
                return ask(probe)

        Probe.ask = disturbed  # type: ignore[method-assign] # a device that is wrong all the time
    told["faulty"] = train(folder / "faulty")
    (folder / f"told.{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
