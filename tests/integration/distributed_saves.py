"""Checkpoints that several ranks save with DCP. Each function is one scenario of
`distributed_launch`; `told` has what DCP itself reads back, whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from distributed_shards import Uneven, sharded
from distributed_training import Here, adam, batch, local, whole
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

Told = dict[str, Any]
DTYPES = (
    torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.bool, torch.int16,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def fsdp2_saves(here: Here) -> Told:
    """A training with sharded parameters, saved after its steps 3 and 4."""
    assert here.run is not None
    model = sharded(Uneven())
    optimizer = adam(model)
    read = {}
    for step in range(1, 5):
        optimizer.zero_grad()
        model(batch(step, 0, here.rank)).square().sum().backward()
        optimizer.step()
        if step >= 3:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optim": moments}
            folder = here.run / f"step-{step}"
            count = torch.tensor(step, dtype=torch.int32)
            _quietly(dcp.save, state | {"train_state": {"step": count}}, checkpoint_id=folder)
            read[step] = _read_back(state, folder)
    return {"state": {}, "read": read}


def odd_saves(here: Here) -> Told:
    """Dtypes, dimensions, replicas, ends without elements, and values of each rank's own."""
    assert here.run is not None
    generator = torch.Generator().manual_seed(5)
    split = {str(dtype): (_drawn(dtype, generator), 1) for dtype in DTYPES}
    split |= {"one row": (torch.arange(3.0)[None], 0), "nothing": (torch.empty(0, 4), 0)}
    plain = {"same": torch.arange(6.0), "scalar": torch.tensor(2.5)}
    state: Told = {name: _part(here, tensor, at) for name, (tensor, at) in split.items()}
    target = _mapped(state | plain, torch.zeros_like)
    state |= plain | {"lr": 0.25, f"only of {here.rank}": here.rank, "step": 11}
    _quietly(dcp.save, state, checkpoint_id=here.run / "odd")
    _quietly(dcp.load, target, checkpoint_id=here.run / "odd")
    loaded = {
        name: torch.equal(local(tensor).view(torch.uint8), local(state[name]).view(torch.uint8))
        for name, tensor in target.items()
        if tensor.dim()
    }
    if here.rank == 0:  # a pickle cannot hold every dtype
        torch.save(
            {name: tensor for name, (tensor, _) in split.items()} | plain, here.run / "whole.pt"
        )
    return {"state": {}, "loaded": loaded}


def _part(here: Here, tensor: torch.Tensor, dimension: int) -> DTensor:
    """The distributed tensor of which this rank has its part; no communication."""
    parts = tensor.chunk(here.world, dimension)
    own = parts[here.rank] if here.rank < len(parts) else tensor.narrow(dimension, 0, 0)
    return DTensor.from_local(
        own.contiguous(), init_device_mesh("cpu", (here.world,)), [Shard(dimension)],
        run_check=False, shape=tensor.shape, stride=tensor.stride(),
    )  # fmt: skip


def hf_saves(here: Here) -> Told:
    """In the form of Hugging Face, in boxes, and put together."""
    assert here.run is not None
    model = sharded(Uneven())
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, together in (("boxes", False), ("both", True)):
        writer = HuggingFaceStorageWriter(
            str(here.run / name), save_distributed=True, enable_consolidation=together
        )
        _quietly(dcp.save, state, storage_writer=writer)
    return {"state": {}, "read": {name: whole(tensor) for name, tensor in state.items()}}


def _drawn(dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(3, 5, generator=generator) > 0.5
    raw = torch.randint(0, 256, (3, 5 * dtype.itemsize), generator=generator)
    return raw.to(torch.uint8).view(dtype)


def _read_back(state: Told, folder: Path) -> dict[str, torch.Tensor]:
    """What DCP reads of a state's tensors, by dotted path and whole."""
    target = _mapped(state, torch.zeros_like)
    _quietly(dcp.load, target, checkpoint_id=folder)
    return {name: whole(tensor) for name, tensor in _flat(target).items()}


def _mapped(node: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        return change(node.detach())
    if isinstance(node, dict):
        return {key: _mapped(value, change) for key, value in node.items()}
    return [_mapped(value, change) for value in node] if isinstance(node, list) else node


def _flat(node: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return {path: node}
    found = {}
    for key, value in node.items() if isinstance(node, dict) else ():
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found


def _quietly(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because DCP warns of its own calls
        call(*arguments, **options)
