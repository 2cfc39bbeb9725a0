"""Trainings with an injector on several ranks. Each function is a scenario of `distributed_launch`.

`here.run` is None for the training without faults.
"""

from __future__ import annotations

from typing import Any

import torch
from distributed_replicas import Net
from distributed_shards import Uneven, sharded
from distributed_training import Here, adam, batch, local, named
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault
from sdc_guard.inject.injector import Injector

Told = dict[str, Any]
STEPS, FAULTY = 3, 1


def _train(here: Here, model: nn.Module, *faults: Fault) -> Told:
    optimizer = adam(model)
    told: Told = {"computed": [], "read": [], "weights": [], "records": [], "missed": []}
    injector = Injector(model, optimizer, seed=5, run=here.run)
    if here.run is not None:
        for fault in faults:
            injector.add(fault)
    optimizer.register_step_pre_hook(lambda *_: told["read"].append(_gradients(model)))
    for step in range(STEPS):
        out = model(batch(step, 0, here.rank))
        told["weights"].append(_state(model, optimizer))
        out.square().mean().backward()
        told["computed"].append(_gradients(model))
        optimizer.step()
        optimizer.zero_grad()
    injector.close()
    told["records"], told["missed"] = injector.records, injector.missed
    told["state"] = _state(model, optimizer)
    return told


def _gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: local(parameter.grad).clone()
        for name, parameter in named(model).items()
        if parameter.grad is not None
    }


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {name: local(p.detach()).clone() for name, p in named(model).items()}
    for name, parameter in named(model).items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"{kind} of {name}"] = local(value).clone()
    return found


def injected_nothing(here: Here) -> Told:
    return _train(here, DistributedDataParallel(Net()))


def injected_gradient(here: Here) -> Told:
    fault = Fault("gradient", FAULTY, "second.weight", 4, bit=26, rank=1)
    return _train(here, DistributedDataParallel(Net()), fault)


def injected_reduced_gradient(here: Here) -> Told:
    fault = Fault("reduced_gradient", FAULTY, "second.weight", 4, bit=26, rank=1)
    return _train(here, DistributedDataParallel(Net()), fault)


def injected_collective(here: Here) -> Told:
    fault = Fault("collective", FAULTY, "second.weight", (0, 4), bit=26, rank=1)
    return _train(here, DistributedDataParallel(Net()), fault)


def injected_shards(here: Here) -> Told:
    """Elements of both ranks' shards, given by the whole tensor; and drawn ones."""
    return _train(
        here,
        sharded(Uneven()),
        Fault("weight", FAULTY, "first.weight", (4, 5), bit=3),  # the last row: rank 1's
        Fault("weight", FAULTY, "first.weight", 0, bit=3),  # rank 0's
        Fault("exp_avg", FAULTY, "second.weight", (2, 0), bit=4),
        Fault("reduced_gradient", FAULTY, "first.bias", 4, bit=5),
        Fault("gradient", FAULTY, "second.weight", 14, bit=6),
        Fault("weight", FAULTY + 1),  # the same element on every rank, held by one
        Fault("exp_avg_sq", FAULTY + 1, "first.weight", rank=1),  # one that rank 1 holds
        Fault("weight", FAULTY + 1, "last.weight", rank=1),  # it holds nothing of it
    )


def no_collective_without_replicas(here: Here) -> Told:
    try:
        return _train(here, sharded(Uneven()), Fault("collective", 0))
    except InjectionError as error:
        return {"state": {}, "error": str(error)}
