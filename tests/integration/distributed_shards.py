"""Trainings with sharded parameters. Each function is one scenario of `distributed_launch`."""

from __future__ import annotations

import math
from typing import Any

import torch
from distributed_training import Here, Training, adam, named
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

Told = dict[str, Any]


class Uneven(nn.Module):
    """Matrices of five rows and of one: on two ranks a shard is smaller, or empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.last = nn.Linear(3, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return y


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """Shard the first layer alone, and the others together."""
    fully_shard(model.first, **options)
    fully_shard(model, **options)
    return model


def train(here: Here, model: nn.Module, **more: Any) -> Told:
    return Training(here, model, adam(model), inner=Uneven(), **more)()


def fsdp2_uneven(here: Here) -> Told:
    options = {"digest_gradients": True}
    return train(here, sharded(Uneven()), clip=0.01, digests=True, options=options)


def fsdp2_accumulation(here: Here) -> Told:
    model = sharded(Uneven())

    def quiet(more_to_come: bool) -> Any:
        model.set_requires_gradient_sync(not more_to_come)
        return torch.enable_grad()

    return train(here, model, parts=2, quiet=quiet, clip=0.01)


def fsdp2_compiled(here: Here) -> Told:
    model = Uneven()
    model.first.compile(backend="eager")
    return train(here, torch.compile(sharded(model), backend="eager"))


def fsdp2_scaler_overflow_on_one_rank(here: Here) -> Told:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def factor(step: int, rank: int) -> float:
        return math.inf if (step, rank) == (1, 1) else 1.0

    return train(here, sharded(Uneven()), scaler=scaler, factor=factor, steps=4)


def hsdp(here: Here) -> Told:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return train(here, sharded(Uneven(), mesh=mesh), digests=True)


def _fsdp1(here: Here, **options: Any) -> Told:
    model = FullyShardedDataParallel(Uneven(), device_id=torch.device("cpu"), **options)
    return train(here, model, weights=_summoned)


def _summoned(model: nn.Module) -> dict[str, torch.Tensor]:
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {name: parameter.detach().clone() for name, parameter in named(model).items()}


def fsdp1_flat(here: Here) -> Told:
    return _fsdp1(here)


def fsdp1_named(here: Here) -> Told:
    return _fsdp1(here, use_orig_params=True)
