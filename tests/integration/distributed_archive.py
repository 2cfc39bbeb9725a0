"""Checkpoints that several ranks write together. Each function is one scenario of
`distributed_launch`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed_meshes import _split
from distributed_replicas import Net
from distributed_shards import Uneven, sharded
from distributed_training import Here, adam, batch, local, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard, RunReader, load_checkpoint, sharded_checkpoints
from sdc_guard.archive.sharded import protocol, staging
from sdc_guard.archive.sharded.pieces import At
from sdc_guard.digest import digest_tensor

Told = dict[str, Any]
SILENCE = 2.0  # seconds


class Training:
    """A training with a guard that digests everything."""

    def __init__(self, here: Here, model: nn.Module, name: str = "", **options: Any) -> None:
        self.here, self.model, self.optimizer = here, model, adam(model)
        assert here.run is not None
        self.run = here.run.with_name(here.run.name + name)
        options = {"digest_budget": None, "policy": "record", "archive_format": "dcp"} | options
        self.guard = Guard(model, self.optimizer, run=self.run, **options)
        self.step, self.names = -1, ("model", "optimizer")

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step += 1
            loss = self.model(batch(self.step, 0, self.here.rank)).square().mean()
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def objects(self) -> Told:
        return dict(zip(self.names, (self.model, self.optimizer), strict=True))

    def whole(self) -> dict[str, torch.Tensor]:
        """All tensors, whole, by the names that the checkpoint gives them; a collective."""
        found = {f"model.{name}": whole(v) for name, v in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            for kind, value in state.items():
                found[f"{self.names[1]}.state.{number}.{kind}"] = whole(value)
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def close(self) -> None:
        self.guard.close()
        dist.barrier()

    def events(self) -> list[tuple[int, int, str]]:
        with RunReader(self.run) as reader:
            return reader.rows(
                "SELECT rank, step, json_extract_string(detail, '$.reason') FROM every.events "
                "WHERE kind = 'checkpoint not saved' ORDER BY rank, step"
            )


def shards(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """This rank's parts of the tensors of a nested state."""
    found = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            inner = {str(key): item for key, item in value.items()}
            found |= {f"{name}.{key}": item for key, item in shards(inner).items()}
        elif isinstance(value, torch.Tensor):
            found[name] = local(value).detach().clone()
    return found


def _saved(one: Training, fresh: nn.Module) -> Told:
    """Two checkpoints, the second in the background, and what a new model loads of the first."""
    one.train(3)
    extra = {
        "rng": torch.arange(4).byte() + one.here.rank,
        "note": {"epoch": one.here.rank, 7: "seven"},
    }
    first = one.guard.checkpoint(one.objects | extra, 2)
    content = one.whole()
    one.train()
    returned = one.guard.checkpoint(one.objects, 3, wait=False)
    kept = shards(one.objects["model"].state_dict())
    later = one.whole()
    one.train()  # while it is written
    second = one.guard.checkpoint_written()
    optimizer = adam(fresh)
    values = load_checkpoint(one.run, into={"model": fresh, "optimizer": optimizer})
    loaded = shards({"model": fresh.state_dict(), "optimizer": optimizer.state_dict()})
    one.close()
    return {
        "state": {}, "folders": (first, second), "returned": returned,
        "whole": {name: tensor.numpy() for name, tensor in content.items()},
        "later": {name: tensor.numpy() for name, tensor in later.items()},
        "digests": {name: tuple(digest_tensor(tensor)) for name, tensor in content.items()},
        "kept": {f"model.{name}": value.numpy() for name, value in kept.items()},
        "loaded": {name: value.numpy() for name, value in loaded.items()},
        "step": values["step"], "health": one.guard.health.last_error, "events": one.events(),
    }  # fmt: skip


def archive_fsdp2(here: Here) -> Told:
    if here.run is None:
        return {"state": {}}
    torch.manual_seed(1)
    return _saved(Training(here, sharded(Uneven())), sharded(Uneven()))


def archive_bytes(here: Here) -> Told:
    """Three checkpoints of shards, with what they hold."""
    if here.run is None:
        return {"state": {}}
    torch.manual_seed(1)
    one = Training(here, sharded(Uneven()))
    saved = {}
    one.train(2)  # steps 0 and 1
    for step in (3, 5, 7):
        one.train(2)
        folder = one.guard.checkpoint(one.objects, step)
        assert folder is not None
        saved[step] = folder.name, {name: tensor.numpy() for name, tensor in one.whole().items()}
    one.close()
    return {"state": {}, "saved": saved}


def archive_ddp(here: Here) -> Told:
    if here.run is None:
        return {"state": {}}
    return _saved(Training(here, DistributedDataParallel(Net())), DistributedDataParallel(Net()))


def archive_resharded(here: Here) -> Told:
    """Loaded on the first two ranks of those that saved it."""
    if here.run is None:
        return {"state": {}}
    one = Training(here, sharded(Uneven()))
    one.train(2)
    folder = one.guard.checkpoint(one.objects, 1)
    expected = one.whole()
    mesh = init_device_mesh("cpu", (here.world // 2, 2), mesh_dim_names=("rest", "pair"))["pair"]
    with torch.no_grad():
        fresh = sharded(Uneven(), mesh=mesh)
        optimizer = adam(fresh)
        for parameter in fresh.parameters():
            parameter.zero_()
    load_checkpoint(str(folder), into={"model": fresh, "optimizer": optimizer})
    state = {"model": fresh.state_dict(), "optimizer": optimizer.state_dict()}
    found = {f"model.{name}": whole(value) for name, value in state["model"].items()} | {
        f"optimizer.state.{number}.{kind}": whole(value)
        for number, kinds in state["optimizer"]["state"].items()
        for kind, value in kinds.items()
    }
    one.close()
    equal = {name: torch.equal(found[name], expected[name]) for name in expected}
    return {
        "state": {}, "folder": folder, "equal": equal, "ranks": mesh.size(),
        "whole": {name: tensor.numpy() for name, tensor in expected.items()},
    }  # fmt: skip


def archive_disagreements(here: Here) -> Told:
    """Labels one step apart, and a rank that does not come; a sound save before and after each."""
    if here.run is None:
        return {"state": {}}
    one = Training(here, DistributedDataParallel(Net()))
    said, folders = [], []

    def save(step: int) -> None:
        folders.append(one.guard.checkpoint(one.objects, step))
        said.append(one.guard.health.last_error)

    one.train()
    save(0)
    one.train()
    save(2 if here.rank == here.world - 1 else 1)
    with mock.patch.object(sharded_checkpoints, "PATIENCE", 0.5):
        one.train()
        if here.rank != 1:
            save(2)
        dist.barrier()
        if here.rank == 1:
            save(2)
    one.train()
    save(3)
    one.close()
    latest = (one.run / "archive" / "LATEST").read_text()
    return {
        "state": {}, "said": said, "folders": folders, "events": one.events(), "latest": latest,
        "left": sorted(path.name for path in (one.run / "archive").iterdir()),
    }  # fmt: skip


class Live(staging.Stager):
    """Keeps the tensors that are trained instead of copies of them."""

    seen: Mapping[At, torch.Tensor]

    def stage(self, tensors: Mapping[At, torch.Tensor], values: Mapping[str, Any]) -> Any:
        self.seen = tensors
        return staging.Staged(dict(tensors), dict(values))


class Stale(staging.Stager):
    """Gives the copy that it made before."""

    def __init__(self, tensors: Mapping[At, torch.Tensor]) -> None:
        super().__init__()
        self._before = tensors

    def stage(self, tensors: Mapping[At, torch.Tensor], values: Mapping[str, Any]) -> Any:
        return staging.Staged(dict(self._before), dict(values))


def archive_race(here: Here) -> Told:
    """The copy is none: a step is run before it is written, while the trace says of which.

    And after that one of the step before.
    """
    if here.run is None:
        return {"state": {}}
    one = Training(here, sharded(Uneven()))
    go_on = threading.Event()
    write = protocol.write_pieces

    def late(*arguments: Any) -> Any:
        go_on.wait(30)
        return write(*arguments)

    one.train(2)
    sound = one.guard.checkpoint(one.objects, 1)
    one.train()
    assert one.guard._archive._checkpoints._several is not None
    stager = one.guard._archive._checkpoints._several._stager = Live()
    with mock.patch.object(protocol, "write_pieces", late):
        one.guard.checkpoint(one.objects, 2, wait=False)
        one.train()
        one.guard.flush()
        go_on.set()
        folder = one.guard.checkpoint_written()
    kept = {at: tensor.clone() for at, tensor in stager.seen.items()}  # of step 3
    one.train()
    one.guard._archive._checkpoints._several._stager = Stale(kept)
    older = one.guard.checkpoint(one.objects, 4)
    one.close()
    return {"state": {}, "folder": folder, "sound": sound, "older": older}


def archive_busy(here: Here) -> Told:
    """A save while one is written is refused on every rank, or waits if it is asked to."""
    if here.run is None:
        return {"state": {}}
    one = Training(here, DistributedDataParallel(Net()))
    go_on = threading.Event()
    write = protocol.write_pieces

    def late(*arguments: Any) -> Any:
        if here.rank == 1:
            go_on.wait(30)
        return write(*arguments)

    one.train()
    with mock.patch.object(protocol, "write_pieces", late):
        one.guard.checkpoint(one.objects, 0, wait=False)
        one.train()
        refused = one.guard.checkpoint(one.objects, 1, wait=False)
        said = one.guard.health.last_error
        go_on.set()
        waited = one.guard.checkpoint(one.objects, 1)
    one.close()
    names = sorted(path.name for path in Path(one.run / "archive").iterdir())
    return {"state": {}, "refused": refused, "said": said, "waited": waited, "names": names}


def archive_silence(here: Here) -> Told:
    """A rank that is slow for longer than a silence may last, and then one that is killed."""
    if here.run is None:
        return {"state": {}}
    one = Training(here, sharded(Uneven()))
    write = protocol.write_pieces

    def slow(*arguments: Any) -> Any:
        time.sleep(1.5 * SILENCE if here.rank else 0.0)
        return write(*arguments)

    def killed(*arguments: Any) -> Any:
        if here.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments)

    one.train(2)
    patience = {"silence": SILENCE, "every": SILENCE / 20}
    folders, said = [], []
    with mock.patch.object(protocol.write_part, "__kwdefaults__", patience):
        for writes in (slow, killed):
            with mock.patch.object(protocol, "write_pieces", writes):
                folders.append(one.guard.checkpoint(one.objects, 1))
            said.append(one.guard.health.last_error)
    one.guard.flush()
    left = sorted(path.name for path in (one.run / "archive").iterdir())
    return {"state": {}, "folders": folders, "said": said, "left": left, "events": one.events()}


def _of_mesh(one: Training) -> Told:
    """What is saved of a training on a mesh, and whether it comes back whole."""
    one.train(2)
    folder = one.guard.checkpoint(one.objects, one.step)
    expected = {name: tensor.numpy() for name, tensor in one.whole().items()}
    one.close()
    health = one.guard.health.last_error
    return {"state": {}, "folder": folder, "whole": expected, "health": health}


def archive_hsdp(here: Here) -> Told:
    """Two replicas of two shards each."""
    if here.run is None:
        return {"state": {}}
    mesh = init_device_mesh("cpu", (here.world // 2, 2), mesh_dim_names=("replicas", "shards"))
    return _of_mesh(Training(here, sharded(Uneven(), mesh=mesh)))


def archive_of_two_dimensions(here: Here) -> Told:
    """fully_shard over tensor parallelism: shards that are cut twice, unevenly."""
    if here.run is None:
        return {"state": {}}
    mesh = init_device_mesh("cpu", (here.world // 2, 2), mesh_dim_names=("data", "tensor"))
    model = _split(mesh["tensor"], wide=10)
    fully_shard(model, mesh=mesh["data"])
    pair = Here(here.rank // 2, 2, here.run)  # a pair of ranks works on one batch
    return _of_mesh(Training(pair, model))


def archive_pipeline(here: Here) -> Told:
    """Ranks with different layers, each for itself."""
    if here.run is None:
        return {"state": {}}
    torch.manual_seed(here.rank)
    model = nn.Sequential(OrderedDict({f"stage{here.rank}": nn.Linear(6, here.rank + 1)}))
    one = Training(here, model)
    one.train()
    doubted = one.guard.checkpoint(one.objects, 0)  # each has an optimizer of that name
    one.names = ("model", f"optimizer{here.rank}")
    told = _of_mesh(one)
    return told | {"doubted": doubted}
