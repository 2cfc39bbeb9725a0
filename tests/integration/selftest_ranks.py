"""The self-test's lines between ranks, on real processes; rank 0 may send a wrong bit to rank 1.

python selftest_ranks.py RANK WORLD FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from sdc_guard.selftest import between_ranks
from sdc_guard.selftest.line import Bench, Line, Outcome, tried


def main(rank: int, world: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    # a file instead of the port that torchrun would have found free
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world
    )
    bench = Bench(folder, (torch.device("cpu"),))
    between_ranks.join(bench.devices)  # is a rank already
    mine = Line("s", "one line", Outcome("FAIL" if rank == 1 else "PASS", f"of rank {rank}"))
    found = [*between_ranks.of_all_ranks([mine])]
    found += tried(between_ranks.trials_of(bench), bench, lambda _: None)
    swap = between_ranks._by_group

    def wrong(device: torch.device, tensor: torch.Tensor, target: int, source: int) -> torch.Tensor:
        if (rank, target) == (0, 1):
            tensor.view(torch.int32)[5] ^= 1 << 3
        return swap(device, tensor, target, source)

    between_ranks._by_group = wrong  # a link that changes one bit
    found += tried(between_ranks.trials_of(bench)[:1], bench, lambda _: None)
    (folder / f"told.{rank}.json").write_text(json.dumps([line.as_object() for line in found]))
    between_ranks.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
