"""Trainings with DistributedDataParallel. Each function is one scenario of `distributed_launch`."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import Any

import torch
from distributed_training import Here, Training, adam
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Told = dict[str, Any]


class Net(nn.Module):
    """Two layers, and one that is not used when `skip` says so."""

    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.spare = nn.Linear(6, 5) if spare else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return y


def train(
    here: Here, *, spare: bool = False, ddp: dict[str, Any] | None = None, **more: Any
) -> Told:
    net = Net(spare=spare)
    model = DistributedDataParallel(net, **(ddp or {}))
    return Training(here, model, adam(model), inner=net, **more)()


def ddp_default(here: Here) -> Told:
    return train(here, clip=0.01, options={"digest_gradients": True})


def ddp_bucket_view(here: Here) -> Told:
    return train(here, ddp={"gradient_as_bucket_view": True})


def ddp_static_graph(here: Here) -> Told:
    return train(here, ddp={"static_graph": True})


def ddp_find_unused(here: Here) -> Told:
    return train(here, spare=True, ddp={"find_unused_parameters": True})


def ddp_inner_module(here: Here) -> Told:
    net = Net()
    model = DistributedDataParallel(net)
    return Training(here, model, adam(model), guarded=model.module, inner=net)()


def ddp_no_sync(here: Here) -> Told:
    net = Net()
    model = DistributedDataParallel(net)

    def quiet(more_to_come: bool) -> Any:
        return model.no_sync() if more_to_come else contextlib.nullcontext()

    return Training(here, model, adam(model), inner=net, parts=2, quiet=quiet)()


def ddp_compiled(here: Here) -> Told:
    net = Net()
    model = DistributedDataParallel(net)
    return Training(here, torch.compile(model, backend="eager"), adam(model), inner=net)()


def _at(step: int, rank: int, *, value: float, bad: tuple[int, int]) -> float:
    return value if (step, rank) == bad else 1.0


def ddp_nan_on_one_rank(here: Here) -> Told:
    return train(here, factor=partial(_at, value=math.nan, bad=(2, 1)))


def ddp_scaler_overflow_on_one_rank(here: Here) -> Told:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    factor = partial(_at, value=math.inf, bad=(1, 1))
    return train(here, factor=factor, scaler=scaler, steps=4)
