"""Trainings in which something goes wrong on one rank. Each function is one scenario."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed_replicas import Net
from distributed_shards import Uneven, sharded
from distributed_training import Here, Training, adam, closing_within, local, named
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard, SdcGuardError, TrainingHalted
from sdc_guard.inject.injector import flip_bit

Told = dict[str, Any]


def training(here: Here, **more: Any) -> Training:
    net = Net()
    model = DistributedDataParallel(net)
    return Training(here, model, adam(model), inner=net, **more)


def guard_on_rank_0_only(here: Here) -> Told:
    with closing_within(0.5):
        return training(here if here.rank == 0 else Here(here.rank, here.world, None))()


def broken_hook_on_rank_1(here: Here) -> Told:
    def broken(*_: object) -> None:
        raise MemoryError("out of memory")

    replaced = broken if here.rank == 1 else None
    if replaced is None or here.run is None:
        return training(here)()
    with mock.patch("sdc_guard.signals.gradient_table.sums_into", replaced):
        return training(here)()


def ddp_checkpoint_by_rank_0(here: Here) -> Told:
    one = training(here)

    def save(guard: Guard) -> Any:
        return guard.checkpoint({"model": one.model}, 2) if here.rank == 0 else None

    one.last = save
    return one()


def fsdp2_checkpoint(here: Here) -> Told:
    model = sharded(Uneven())
    one = Training(here, model, adam(model), inner=Uneven())
    one.last = lambda guard: guard.checkpoint({"model": model}, 2)
    return one()


def resumed(here: Here) -> Told:
    """Three steps, and two more in a second start."""
    training(here)()
    return training(here, steps=2, options={"first_step": 3})()


def two_hosts(here: Here) -> Told:
    """Two starts; each rank on a host of its own, rank 1 on another one in the second."""
    for start, name in enumerate(("node-{}", "spare-{}")):
        host = name.format(here.rank) if here.rank else "node-0"
        with mock.patch("socket.gethostname", lambda host=host: host):
            told = training(here, steps=3, options={"first_step": 3 * start})()
    return told


def _nan_at_1(step: int, rank: int) -> float:
    return math.nan if (step, rank) == (1, 1) else 1.0


def skipped_together(here: Here) -> Told:
    return training(here, factor=_nan_at_1, options={"policy": "skip"})()


def halted_together(here: Here) -> Told:
    one = training(here, factor=_nan_at_1, options={"policy": "halt"})
    return _ends(one, TrainingHalted) if here.run else one()


def _ends(run: Callable[[], Any], error: type[Exception]) -> Told:
    """The message of the error by which a training ends."""
    try:
        run()
    except error as caught:
        return {"said": str(caught), "kind": type(caught).__name__, "state": {}}
    return {"said": "nothing", "state": {}}


def _guard(here: Here, **options: Any) -> Told:
    """Only make a Guard, and tell why that fails."""
    if here.run is None:
        return {"state": {}}
    net = Net()

    def make() -> None:
        Guard(net, adam(net), run=here.run, **options).close()

    return _ends(make, SdcGuardError)


def damaged_run_file(here: Here) -> Told:
    if here.run and here.rank == 0:
        here.run.mkdir()
        (here.run / "run.json").write_text("{", encoding="utf-8")
    return _guard(here)


def unequal_policies(here: Here) -> Told:
    return _guard(here, policy="halt" if here.rank == 0 else "warn")


def no_guard_on_rank_0(here: Here) -> Told:
    store = dist.distributed_c10d._get_default_store()
    patience = store.timeout
    store.set_timeout(timedelta(seconds=1))
    told = {"state": {}} if here.rank == 0 else _guard(here)
    store.set_timeout(patience)
    return told


class Flipped(Training):
    """A training in which a bit of a weight flips on rank 1 before step 1."""

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if guard is not None and (step, self.here.rank) == (1, 1):
            with torch.no_grad():
                flip_bit(local(named(self.model)["first.weight"]), 3, 20)
        super()._pass(step, part, guard)


def bit_flipped_in_a_shard(here: Here) -> Told:
    model = sharded(Uneven())
    return Flipped(here, model, adam(model), inner=Uneven())()


class Dying(Training):
    """A training in which rank 1 is killed in step 1."""

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if guard is not None and (step, self.here.rank) == (1, 1):
            os._exit(9)
        super()._pass(step, part, guard)


def death_of_rank_1(here: Here) -> Told:
    net = Net()
    model = DistributedDataParallel(net)
    one = Dying(here, model, adam(model), inner=net)
    return _ends(one, RuntimeError) if here.run else one()
