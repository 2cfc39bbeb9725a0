"""Checkpoints that several ranks save by themselves, sealed. Each function is one scenario of
`distributed_launch`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from distributed_archive import Training
from distributed_replicas import Net
from distributed_shards import Uneven, sharded
from distributed_training import Here, local
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import seals
from sdc_guard.archive.sealing.seal_file import seal_at

Told = dict[str, Any]


class Sealing:
    """A training whose checkpoints are sealed; what the seals say, by name."""

    def __init__(self, here: Here, model: torch.nn.Module, **options: Any) -> None:
        assert here.run is not None
        self.here, self.folder, self.said = here, here.run / "saved", {}
        self.one = Training(here, model, **options)
        self.said: Told

    def state(self) -> Told:
        """Copies of the shards of model and optimizer: DCP may save them while the training goes
        on."""
        weights, moments = get_state_dict(self.one.model, self.one.optimizer)
        return {"model": weights, "optim": moments}

    def dcp(self, name: str, state: Told | None = None) -> Path:
        folder = self.folder / name
        _quietly(dcp.save, self.state() if state is None else state, checkpoint_id=folder)
        return folder

    def sealed(self, path: Path, step: int, *ranks: int) -> None:
        """Seal it, on these ranks or on all; rank 0 waits for the seal."""
        if self.here.rank in (ranks or range(self.here.world)):
            self.one.guard.seal(path, step, wait=True)
        seal = seal_at(path) if self.here.rank == 0 else None
        if seal is not None and seal.guarded is not None:
            known = seal.guarded
            kinds = sorted({kind for kind, _ in known.tensors.values()})
            self.said[path.name] = known.status, known.reasons, kinds, len(known.tensors)
        dist.barrier()

    def told(self) -> Told:
        health = self.one.guard.health.last_error
        self.one.close()
        return {"state": {}, "said": self.said, "health": health, "run": self.one.run}


def seals_fsdp2(here: Here) -> Told:
    """Sharded, whole on rank 0, beside the training, of another step, and altered."""
    if here.run is None:
        return {"state": {}}
    case = Sealing(here, sharded(Uneven()))
    case.one.train(2)
    case.sealed(case.dcp("sharded"), 1)

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(case.one.model, options=whole)
    if here.rank == 0:
        torch.save({"model": weights}, case.folder / "whole.pt")
    case.sealed(case.folder / "whole.pt", 1)

    beside = case.folder / "beside"
    group = dist.new_group(backend="gloo")  # its collectives run beside those of the training
    for name, together in (("boxes", False), ("together", True)):
        folder = case.folder / name
        writer = HuggingFaceStorageWriter(
            str(folder), save_distributed=True, enable_consolidation=together
        )
        _quietly(dcp.save, dict(case.state()["model"]), storage_writer=writer)
        case.sealed(folder, 1)
    pending = _quietly(dcp.async_save, case.state(), checkpoint_id=beside, process_group=group)
    case.one.train()
    pending.result()
    case.sealed(beside, 1)
    case.sealed(case.dcp("overtaken"), 1)

    state = case.state()
    weight = state["model"]["first.weight"]
    altered = weight.detach().clone()
    if here.rank == 1:
        local(altered).view(torch.int32)[0, 0] ^= 1 << 12
    state["model"] = {**state["model"], "first.weight": altered}
    case.sealed(case.dcp("altered", state), 2)
    with mock.patch.object(seals, "PATIENCE_IN_STEP", 0.5):
        case.one.train()
        case.sealed(case.dcp("alone"), 3, 0)
    for step in (3, 4):
        case.one.guard.checkpoint(case.one.objects, step)
        case.one.train()
    return case.told()


def seals_budgeted(here: Here) -> Told:
    """What a budget left out is digested on every rank when it is sealed."""
    if here.run is None:
        return {"state": {}}
    case = Sealing(here, sharded(Uneven()), digest_budget=0.0)
    case.one.train(3)
    case.sealed(case.dcp("budgeted"), 2)
    return case.told()


def seals_ddp(here: Here) -> Told:
    """Rank 0 holds all of it."""
    if here.run is None:
        return {"state": {}}
    case = Sealing(here, DistributedDataParallel(Net()))
    case.one.train(2)
    case.sealed(case.dcp("replicas"), 1)
    return case.told()


def _quietly(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because DCP warns of its own future
        return call(*arguments, **options)
