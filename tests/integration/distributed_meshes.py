"""Trainings in which ranks have different tasks. Each function is one scenario."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from distributed_training import Here, Training, adam
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

Told = dict[str, Any]


class Block(nn.Module):
    """What tensor parallelism splits: one layer by its outputs, the next one by its inputs."""

    def __init__(self, wide: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(6, wide), nn.Linear(wide, 6), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.down(torch.tanh(self.up(x))))
        return x * (y.full_tensor() if isinstance(y, DTensor) else y)


def _split(mesh: DeviceMesh, *, sequence: bool = False, wide: int = 8) -> nn.Module:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan["down"] = RowwiseParallel(output_layouts=Shard(0))
        plan["norm"] = SequenceParallel(sequence_dim=0)
    return parallelize_module(Block(wide), mesh, plan)


def _train(here: Here, model: nn.Module, *, wide: int = 8, **more: Any) -> Told:
    return Training(here, model, adam(model), inner=Block(wide), **more)()


def tensor_parallel(here: Here) -> Told:
    model = _split(init_device_mesh("cpu", (here.world,)))
    return _train(here, model, together=True, digests=True)


def sequence_parallel(here: Here) -> Told:
    model = _split(init_device_mesh("cpu", (here.world,)), sequence=True)
    return _train(here, model, together=True)


def fsdp2_on_tensor_parallel(here: Here) -> Told:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _split(mesh["tensor"], wide=10)  # parts of five rows, which are cut unevenly in turn
    fully_shard(model, mesh=mesh["data"])
    pair = Here(here.rank // 2, 2, here.run)  # a pair of ranks works on one batch
    return _train(pair, model, wide=10, digests=True)


def ddp_in_pairs(here: Here) -> Told:
    """Two pairs of replicas that know nothing of each other."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = here.rank // 2
    block = Block()
    model = DistributedDataParallel(block, process_group=pairs[pair])
    return _train(Here(here.rank % 2, 2, here.run), model, factor=lambda *_: 1.0 + pair)
