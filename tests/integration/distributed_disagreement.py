"""Trainings in which what several ranks should hold alike differs. Each function is a scenario."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from distributed_meshes import Block
from distributed_replicas import Net
from distributed_shards import Uneven, sharded
from distributed_training import Here, Training, adam, closing_within, local, named
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard
from sdc_guard.checks.replicas.check import ReplicaCheck
from sdc_guard.inject.injector import flip_bit

Told = dict[str, Any]
AT, EVERY, STEPS = 3, 2, 12  # the fault, the comparisons, all steps
HIGH = 25  # a bit of the exponent that leaves the training finite


@dataclass
class Disturbed(Training):
    """A training in which something happens on one rank before step AT, if there is a guard.

    Its steps wait for what is done in the background.
    """

    culprit: int = 2
    lockstep: bool = False  # for ranks that do not wait for each other by themselves
    patience: float = 2.0  # seconds in which a comparison has come to something
    disturb: Callable[[Training, Guard], None] = lambda *_: None

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if guard is not None:
            time.sleep(0.01)
            if step > AT + AT % EVERY:
                until_compared(guard, self.patience)
            if (step, self.here.rank) == (AT, self.culprit):
                with torch.no_grad():
                    self.disturb(self, guard)
        if self.lockstep:
            dist.barrier()
        super()._pass(step, part, guard)


def until_compared(guard: Guard, seconds: float) -> None:
    """Wait until it is known what came of the newest record, or which step's values are asked for.

    At most so long; on a machine with more to do the steps of these trainings would be over before.
    """
    (check,) = (one for one in guard._checks._checks if isinstance(one, ReplicaCheck))
    end = time.monotonic() + seconds
    while time.monotonic() < end and check._thread.waiting and check._thread._done.empty():
        awaited = check._comparison.awaited
        if awaited is not None and awaited > check._asked.step:
            return
        time.sleep(0.001)


def train(here: Here, model: nn.Module, disturb: Any = lambda *_: None, **more: Any) -> Told:
    options = {"replicas_every": EVERY} | more.pop("options", {})
    more = {"steps": STEPS, "options": options} | more
    told = Disturbed(here, model, adam(model), disturb=disturb, **more)()
    if disturb.__name__ != "<lambda>":
        told["state"] = {}  # the fault is in the guarded training alone
    return told


def ddp(here: Here, disturb: Any = lambda *_: None, **more: Any) -> Told:
    return train(here, DistributedDataParallel(Net()), disturb, **more)


def flip_weight(one: Training, _: Guard) -> None:
    flip_bit(local(named(one.model)["first.weight"]), 3, HIGH)


def flip_moment(one: Training, _: Guard) -> None:
    flip_bit(one.optimizer.state[named(one.model)["second.weight"]]["exp_avg"], 2, HIGH)


def drift_weight(one: Training, _: Guard) -> None:
    named(one.model)["first.weight"].view(-1)[:15].mul_(1 + 1.4e-5)


def change_input(_: Training, guard: Guard) -> None:
    guard._shadow._batch[0, 0] += 1  # type: ignore[union-attr]


def replicas_sound(here: Here) -> Told:
    return ddp(here, options={"shadow": shadow()})


def weight_flipped(here: Here) -> Told:
    return ddp(here, flip_weight)


def moment_flipped(here: Here) -> Told:
    return ddp(here, flip_moment, culprit=0)


def weight_drifted(here: Here) -> Told:
    return ddp(here, drift_weight)


def shadow() -> Any:
    return torch.ones(4, 6), lambda model, x: model(x).square().mean()


def input_changed(here: Here) -> Told:
    return ddp(here, change_input, options={"shadow": shadow(), "shadow_every": EVERY})


def ddp_bypassed(here: Here) -> Told:
    """The wrapper is made, and its module is called: gradients are each rank's own."""
    model = DistributedDataParallel(Net())
    inner = model.module
    one = Disturbed(here, inner, adam(model), guarded=model, steps=6, lockstep=True)
    one.options = {"replicas_every": EVERY}
    return one()


def experts(here: Here) -> Told:
    """Layers of the same name that start alike and are each rank's own."""
    return train(here, Net(), steps=6, lockstep=True)


class Normalized(nn.Module):
    """A layer whose buffers follow each rank's own batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.first(x))
        return y


def own_statistics(here: Here) -> Told:
    model = DistributedDataParallel(Normalized(), broadcast_buffers=False)
    return train(here, model, steps=6, options={"digest_buffers": True})


def pair_of_replicas(here: Here) -> Told:
    """Two replicas, and a rank that has nothing to do with them."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    model = DistributedDataParallel(Net(), process_group=groups[here.rank // 2])
    return train(here, model, flip_weight, culprit=1, lockstep=True)


def one_without_a_guard(here: Here) -> Told:
    with closing_within(0.5):
        alone = Here(here.rank, here.world, None)
        return ddp(here if here.rank < 2 else alone, steps=6, patience=1.0)


class Killed(Disturbed):
    """Each rank trains by itself, and one of them is killed."""

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if guard is not None and (step, self.here.rank) == (AT, self.culprit):
            os.kill(os.getpid(), 9)
        super()._pass(step, part, guard)


def one_killed(here: Here) -> Told:
    model = Net()
    one = Killed(here, model, adam(model), together=True, steps=8, patience=0.5)
    one.options = {"replicas_every": EVERY}
    with closing_within(0.5):
        return one()


def hsdp_flipped(here: Here) -> Told:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return train(here, sharded(Uneven(), mesh=mesh), flip_weight, culprit=3)


def nothing_replicated(here: Here) -> Told:
    options = {"shadow": shadow(), "shadow_every": EVERY}  # its loss is the same on all ranks
    return train(here, sharded(Uneven()), steps=6, options=options)


def flip_norm(one: Training, _: Guard) -> None:
    flip_bit(named(one.model)["norm.weight"], 1, HIGH)


def tensor_parallel_flipped(here: Here) -> Told:
    """What the plan leaves alone is the same on all ranks, though nothing declares it."""
    mesh = init_device_mesh("cpu", (here.world,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Block(), mesh, plan)
    return train(here, model, flip_norm, together=True)
