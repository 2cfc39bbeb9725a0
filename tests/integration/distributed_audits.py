"""Trainings whose steps are run again by neighbouring ranks. Each function is one scenario."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import torch
from distributed_training import Here, batch, closing_within
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard, RunReader
from sdc_guard.checks.audit import neighbours

Told = dict[str, Any]
STEPS, FROM = 9, 6  # FROM: the step at which faults begin


class Net(nn.Module):
    """Dropout, and a batch norm whose buffers each rank has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.norm(self.body(x)).relu()))


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean() / 2


class Faulty:
    """A rank's device: from a step on it computes the same wrong number whatever is run on it."""

    step = -1

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def hook(self, here: Here) -> Callable[..., Any]:
        def spoil(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
            if here.rank != self.rank or self.step < FROM:
                return None
            spoilt = output.clone()
            spoilt[0, 0] = spoilt[0, 0] + 0.125
            return spoilt

        return spoil


def training(
    here: Here,
    faulty: Faulty,
    *,
    guarded: bool = True,
    alike: bool = True,
    make: Callable[[], Net] = Net,
) -> Told:
    torch.manual_seed(3)
    net, parts = make(), 2
    net.body.register_forward_hook(faulty.hook(here))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    if not alike:
        net.head.bias.data.add_(here.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = None
    if here.run is not None and guarded:
        guard = Guard(
            model, optimizer, run=here.run, policy="record", audit=loss_fn, audit_rate=1.0,
            ledger=here.run.parent / f"{here.run.name}.ledger",
        )  # fmt: skip
    for step in range(STEPS):
        faulty.step = step
        for part in range(parts):
            x = batch(step, part, here.rank)
            quiet = model.no_sync() if part < parts - 1 else contextlib.nullcontext()
            with quiet:
                loss = loss_fn(model, x)
                loss.backward()
            if guard is not None:
                guard.observe(loss, x)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    told: Told = {"state": {n: v.detach().clone() for n, v in net.state_dict().items()}}
    if guard is not None:
        told |= finished(here, guard)
    elif here.run is not None:
        torch.distributed.barrier()
    return told


def finished(here: Here, guard: Guard) -> Told:
    """What the guard of this rank recorded."""
    guard.close()
    torch.distributed.barrier()
    with RunReader(guard.run) as reader:
        rows = reader.rows("SELECT step, rank, detail FROM every.events WHERE kind = 'audit'")
        alerts = reader.rows("SELECT step, rank, severity, detail FROM every.alerts")
    return {
        "health": guard.health,
        "audits": [(s, r, json.loads(d)) for s, r, d in rows if r == here.rank],
        "alerts": [(s, v, json.loads(d)) for s, r, v, d in alerts if r == here.rank],
    }


def audited(here: Here) -> Told:
    return training(here, Faulty(-1))


def other_parameters(here: Here) -> Told:
    return training(here, Faulty(-1), alike=False)


def one_faulty_rank(here: Here) -> Told:
    return training(here, Faulty(1))


def audited_on_rank_0_only(here: Here) -> Told:
    neighbours.PATIENCE = 0.3
    try:
        with closing_within(0.5):
            return training(here, Faulty(-1), guarded=here.rank == 0)
    finally:
        neighbours.PATIENCE = 30.0


class Gathering(Net):
    """Its forward talks to the other ranks, as that of a contrastive loss does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.mean(0)
        torch.distributed.all_reduce(total)
        return super().forward(x - total / torch.distributed.get_world_size())


def a_forward_that_communicates(here: Here) -> Told:
    return training(here, Faulty(-1), make=Gathering)


def audited_shards(here: Here) -> Told:
    """fully_shard: the guard says why it runs nothing again."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 1))
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    guard = None
    if here.run is not None:
        guard = Guard(net, optimizer, run=here.run, policy="record", audit=loss_fn, audit_rate=1.0)
    for step in range(4):
        x = batch(step, 0, here.rank)
        loss = loss_fn(net, x)
        loss.backward()
        if guard is not None:
            guard.observe(loss, x)
        optimizer.step()
        optimizer.zero_grad()
    state = {n: v.to_local().detach().clone() for n, v in net.state_dict().items()}
    return {"state": state} | (finished(here, guard) if guard is not None else {})
