"""Trainings on two ranks, each with and without a shadow pass: run as a process for each rank.

python rank_setups.py RANK INIT_FILE RESULT_FILE
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from stateful_setups import (
    SETUPS,
    WIDTH,
    bits,
    different,
    loss_fn,
    seed_everything,
    shadow_batch,
    state_of,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from sdc_guard.signals.shadow import LossFunction, ShadowPass

Optimizers = list[torch.optim.Optimizer]
RANKS, STEPS = 2, 5


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


class Blocks(nn.Module):
    """Blocks with dropout and batch norm, a clipped embedding, and a head of odd size."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH, max_norm=1.0)
        self.blocks = nn.Sequential(*(Block(norm) for _ in range(2)))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.embedding((x[:, 0] * 3).long().remainder(7))
        return self.head(self.blocks(x + rows))


class Pair(nn.Module):
    """A frozen teacher beside a student; only both of its parts are sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = Blocks(), Blocks()
        self.teacher.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            aim = self.teacher(x)
        return self.student(x) - aim


def adam(model: nn.Module) -> Optimizers:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [torch.optim.AdamW(trained, lr=0.01)]


def two(model: nn.Module) -> Optimizers:
    """The first one steps, and with it the pass runs, before the second one writes."""
    parameters = list(model.parameters())
    half = len(parameters) // 2
    return [torch.optim.Adam(part, lr=0.01) for part in (parameters[:half], parameters[half:])]


def train(
    make: Callable[[], nn.Module],
    shadow: Callable[[nn.Module], torch.Tensor] | None,
    optimizers: Callable[[nn.Module], Optimizers] = adam,
) -> tuple[dict[str, Any], list[list[float]]]:
    """Train, and return this rank's state, the whole parameters, and the shadow losses."""
    seed_everything(1)
    model = make()
    stepping = optimizers(model)
    losses: list[list[float]] = []
    if shadow is not None:
        stepping[0].register_step_post_hook(lambda *_: losses.append(shadow(model).tolist()))
    seed_everything(10 + dist.get_rank())
    for _ in range(STEPS):
        loss_fn(model, torch.randn(8, WIDTH)).backward()
        for optimizer in stepping:
            optimizer.step()
            optimizer.zero_grad()
    # before it is asked for its parameters, which shards them all
    state = {"sharding": sharding(model)} | state_of(model, stepping[-1])
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            state[f"whole {name}"] = bits(parameter.full_tensor())
    return state, losses


def sharding(model: nn.Module) -> list[str]:
    """What torch keeps of forward passes for the backward, and which parameters are gathered."""
    found = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            found.append(f"{state._training_state} {state._state_ctx.iter_forward_root}")
            for group in state._fsdp_param_groups:
                found.append(
                    f"{group._sharded_state} {group._training_state} {group._post_forward_indices}"
                    f" {len(group.comm_ctx.post_forward_order)} {group._reshard_after_forward}"
                )
    return found


def ddp(make: Callable[[], nn.Module], order: str) -> nn.Module:
    torch._dynamo.reset()
    model = make()
    if order == "compiled inside":
        model = torch.compile(model, backend="eager")
    model = DistributedDataParallel(model)
    return torch.compile(model, backend="eager") if order == "compiled around" else model


def sharded(
    mesh: DeviceMesh, reshard: bool, make: Callable[[], nn.Module] = Blocks, **options: Any
) -> nn.Module:
    model = make()
    several = [model.teacher, model.student] if isinstance(model, Pair) else [model]
    for part in several:
        for block in part.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **options)
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, **options)
    return model


def grouped(mesh: DeviceMesh) -> nn.Module:
    model = Blocks()
    fully_shard([model.embedding, model.head], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def prefetching(mesh: DeviceMesh) -> nn.Module:
    model = sharded(mesh, True)
    blocks = list(model.blocks)
    for number, block in enumerate(blocks[:-1]):
        block.set_modules_to_forward_prefetch(blocks[number + 1 :])
    return model


def compiled_blocks(mesh: DeviceMesh) -> nn.Module:
    torch._dynamo.reset()
    model = Blocks()
    for block in model.blocks:
        block.compile(backend="eager")
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def passing(loss: LossFunction = loss_fn) -> Callable[[nn.Module], torch.Tensor]:
    run = ShadowPass(shadow_batch(), loss)
    return lambda model: run(model).losses


def careless(model: nn.Module) -> torch.Tensor:
    """A pass that leaves parameters gathered."""
    with torch.no_grad():
        return loss_fn(model, shadow_batch()).repeat(2)


def partly(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Leaves blocks out whose parameters the first one has prefetched."""
    return model.blocks[0](batch).square().mean()


def failing() -> Callable[[nn.Module], torch.Tensor]:
    """Fails in the midst of every second forward."""
    calls = 0

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls % 2:
            return loss_fn(model, batch)
        handle = model.blocks[1].linear.register_forward_hook(lambda *_: 1 / 0)
        try:
            return loss_fn(model, batch)
        finally:
            handle.remove()

    run = passing(loss)

    def caught(model: nn.Module) -> torch.Tensor:
        with contextlib.suppress(ZeroDivisionError):
            run(model)
        return torch.zeros(2)

    return caught


@dataclass(frozen=True)
class Scenario:
    """A training, and the pass that goes with it."""

    make: Callable[[], nn.Module]
    optimizers: Callable[[nn.Module], Optimizers] = adam
    shadow: Callable[[], Callable[[nn.Module], torch.Tensor]] = passing

    def run(self) -> dict[str, Any]:
        """What differs with and without the pass, and the losses of the pass."""
        without, _ = train(self.make, None, self.optimizers)
        state, losses = train(self.make, self.shadow(), self.optimizers)
        return {"different": different(state, without), "losses": losses}


def scenarios(mesh: DeviceMesh) -> dict[str, Scenario]:
    """By name; each rank runs them in this order."""
    made: dict[str, Scenario] = {}
    for order in ("plain", "compiled inside", "compiled around"):
        made[f"parallel, {order}"] = Scenario(partial(ddp, Blocks, order))
    for name in ("averages", "queue", "momentum encoder"):
        made[f"parallel, {name}"] = Scenario(partial(ddp, SETUPS[name], "plain"))
    for reshard in (True, False):
        make = partial(sharded, mesh, reshard)
        made[f"sharded, {reshard}"] = Scenario(make)
        made[f"sharded, {reshard}, two optimizers"] = Scenario(make, two)
        made[f"sharded, {reshard}, teacher"] = Scenario(partial(make, Pair))
        made[f"sharded, {reshard}, failing"] = Scenario(make, shadow=failing)
    made["careless"] = Scenario(partial(sharded, mesh, False), two, lambda: careless)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    norm = partial(Blocks, nn.LayerNorm)
    made["sharded, bfloat16"] = Scenario(partial(sharded, mesh, True, norm, mp_policy=half))
    made["sharded, grouped"] = Scenario(partial(grouped, mesh))
    made["sharded, prefetching"] = Scenario(partial(prefetching, mesh))
    made["sharded, partly"] = Scenario(partial(prefetching, mesh), two, lambda: passing(partly))
    made["sharded, compiled"] = Scenario(partial(compiled_blocks, mesh))
    made["tensor parallel"] = Scenario(partial(tensor_parallel, mesh))
    return made


def main(rank: int, init: str, result: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{init}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    found: dict[str, Any] = {}
    try:
        for name, scenario in scenarios(init_device_mesh("cpu", (RANKS,))).items():
            found[name] = {"error": "never came back"}
            found[name] = scenario.run()
    except BaseException:  # noqa: BLE001 - because the test shows it, of whatever kind
        found[name]["error"] = traceback.format_exc()
    result.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
