"""What the Trainers of libraries save on several ranks, sealed by their callbacks' guards. Each
function is one scenario of `distributed_launch`."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import lightning_parts as li
import torch
import torch.distributed as dist
import trainer_parts as hf
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from distributed_training import Here
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from sdc_guard import Guard
from sdc_guard.archive.sealing.seal_file import SUFFIX, seal_at
from sdc_guard.integrations.accelerate import guard_for

Told = dict[str, Any]


def _told(here: Here, train: Callable[[Path], Guard]) -> Told:
    """Train as a rank of torchrun; what this rank was to seal, and what the seals say."""
    assert here.run is not None
    calls: list[tuple[str, int]] = []
    seal = Guard.seal

    def counted(guard: Guard, path: Any, step: int, **options: Any) -> Any:
        calls.append((Path(path).name, step))
        return seal(guard, path, step, **options)

    with _as_torchrun(here), mock.patch.object(Guard, "seal", counted):
        guard = train(here.run)
    dist.barrier()
    said = {}
    for path in sorted(here.run.rglob(f"*{SUFFIX}")):
        found = seal_at(path.with_name(path.name.removesuffix(SUFFIX)))
        assert found is not None
        assert found.guarded is not None
        kinds = {kind for kind, _ in found.guarded.tensors.values()}
        said[path.name.removesuffix(SUFFIX)] = (
            found.format, found.guarded.status, found.guarded.reasons, kinds,
        )  # fmt: skip
    health = guard.health.last_error
    return {"state": {}, "calls": calls, "said": said, "health": health, "run": guard.run}


@contextmanager
def _as_torchrun(here: Here) -> Any:
    """The variables that tell a library of the ranks, and no memory of the training before."""
    ranks = {"RANK": here.rank, "LOCAL_RANK": here.rank, "GROUP_RANK": 0}
    worlds = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), here.world)
    others = {"MASTER_ADDR": "localhost", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "none"}
    said = {name: str(value) for name, value in {**ranks, **worlds, **others}.items()}
    with mock.patch.dict(os.environ, said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because the libraries and DCP warn of their own future
        try:
            yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()


def libraries_trainer(here: Here) -> Told:
    """The Trainer wraps the model in DDP by itself."""

    def train(run: Path) -> Guard:
        callback = hf.SdcGuardCallback(policy="record", run=run / "run")
        saving = {"save_strategy": "steps", "save_steps": 2, "ddp_backend": "gloo"}
        hf.trainer_of(run, hf.Line(), hf.points(16), callback, **saving).train()
        assert callback.guard is not None
        return callback.guard

    return _told(here, train) if here.run else {"state": {}}


class Sharded(li.Line):  # type: ignore[misc] # because the class is known when it runs
    """Shards its net, as Lightning's strategy for it asks for."""

    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return li.net_loss(self.net, batch)


def _lightning(here: Here, module: Any, **options: Any) -> Told:
    def train(run: Path) -> Guard:
        checkpoints = li.ModelCheckpoint(
            run / "saved", filename="{step}", every_n_train_steps=2, save_top_k=-1
        )
        callback = li.SdcGuardCallback(run / "run", policy="record")
        options.update(enable_checkpointing=True, devices=here.world)
        trainer = li.trainer_of(run, callback, checkpoints, **options)
        trainer.fit(module(), li.loader(li.data(8)))
        return callback.guards[0]

    return _told(here, train) if here.run else {"state": {}}


def libraries_lightning(here: Here) -> Told:
    return _lightning(here, li.Line, strategy="ddp")


def libraries_lightning_fsdp2(here: Here) -> Told:
    """A directory of DCP, to which each rank writes."""
    return _lightning(here, Sharded, strategy=_parallel(here, distributed=True))


def libraries_lightning_whole(here: Here) -> Told:
    """Shards, saved as one file by rank 0."""
    return _lightning(here, Sharded, strategy=_parallel(here, distributed=False))


def _parallel(here: Here, *, distributed: bool) -> ModelParallelStrategy:
    return ModelParallelStrategy(
        here.world, 1, save_distributed_checkpoint=distributed, process_group_backend="gloo"
    )


def _accelerate(here: Here, **options: Any) -> Told:
    def train(run: Path) -> Guard:
        accelerator = Accelerator(cpu=True, **options)
        if options:  # which it offers on devices alone
            for state in (PartialState._shared_state, accelerator.state.__dict__):
                state["distributed_type"] = DistributedType.FSDP
            accelerator.state.fsdp_plugin = options["fsdp_plugin"]
        torch.manual_seed(0)
        plain = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1))
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()))
        about: Told = {"run": run / "run", "first_step": 1, "policy": "record"}
        with guard_for(accelerator, model, optimizer, **about) as guard:
            for step in (1, 2):
                loss = model(torch.randn(4, 5)).square().mean()
                accelerator.backward(loss)
                guard.observe(loss)
                optimizer.step()
                optimizer.zero_grad()
                accelerator.save_state(str(run / f"state-{step}"))
        return guard

    return _told(here, train) if here.run else {"state": {}}


def libraries_accelerate(here: Here) -> Told:
    return _accelerate(here)


def _plugin(kind: str) -> FullyShardedDataParallelPlugin:
    return FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type=kind, auto_wrap_policy="no_wrap"
    )


def libraries_accelerate_fsdp2(here: Here) -> Told:
    """Directories of DCP in a folder. The Trainer has the same in its own, beside its state."""
    told = _accelerate(here, fsdp_plugin=_plugin("SHARDED_STATE_DICT"))
    if here.run and here.rank == 0:
        trained = shutil.copytree(here.run / "state-2", here.run / "checkpoint-2")
        (trained / "trainer_state.json").write_text('{"global_step": 2}')
    return told


def libraries_accelerate_whole(here: Here) -> Told:
    """Shards, saved as whole files by rank 0."""
    return _accelerate(here, fsdp_plugin=_plugin("FULL_STATE_DICT"))
