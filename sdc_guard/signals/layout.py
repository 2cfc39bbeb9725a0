"""How a training is laid out: optimizers, wrappers, and the mesh of ranks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel


def optimizer_classes(optimizers: Iterable[Any]) -> str:
    """Names of their classes, without wrappers."""
    return ", ".join(type(_inner(optimizer)).__name__ for optimizer in optimizers)


def optimizer_flags(optimizers: Iterable[Any]) -> dict[str, Any] | list[dict[str, Any]]:
    """The switches of one optimizer, or of each of several; numbers are left to the run's code.

    They are those of the parameter groups, which a loaded checkpoint overwrites. A switch that
    its groups do not agree on is the list of its values.
    """
    flags = [_flags(_inner(optimizer)) for optimizer in optimizers]
    return flags[0] if len(flags) == 1 else flags


def layout(model: torch.nn.Module | None) -> dict[str, Any]:
    """Backend, meshes, wrappers and compiled modules, as far as `model` tells."""
    modules = [] if model is None else list(model.modules())
    parameters = [] if model is None else list(model.parameters())
    return {
        "backend": dist.get_backend() if dist.is_available() and dist.is_initialized() else None,
        "mesh": sorted({_mesh(p.device_mesh) for p in parameters if hasattr(p, "device_mesh")}),
        "wrappers": dict(sorted(Counter(_wrappers(modules)).items())),
        "buckets": [
            [module.bucket_bytes_cap, module.static_graph, module.gradient_as_bucket_view]
            for module in modules
            if isinstance(module, DistributedDataParallel)
        ],
        "compiled": sum(map(_is_compiled, modules)),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
    }


def _inner(optimizer: Any) -> Any:
    """What a framework's wrapper wraps, if it is one."""
    inner = getattr(optimizer, "optimizer", None)
    return optimizer if inner is None else inner


def _flags(optimizer: Any) -> dict[str, Any]:
    found: dict[str, list[Any]] = {"foreach": [], "fused": [], "capturable": []}
    for group in optimizer.param_groups:
        for name, value in group.items():
            if value is None or isinstance(value, (bool, str)):
                found.setdefault(name, []).append(value)
    return {name: _one(values) for name, values in sorted(found.items())}


def _one(values: list[Any]) -> Any:
    first = values[0] if values else None
    return first if all(value == first for value in values) else values


def _mesh(mesh: Any) -> str:
    names = mesh.mesh_dim_names or [str(place) for place in range(mesh.ndim)]
    sizes = [f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True)]
    return f"{mesh.device_type}: {' '.join(sizes)}"


def _wrappers(modules: list[torch.nn.Module]) -> Iterator[str]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not loaded: nothing is sharded
    for module in modules:
        if isinstance(module, (DistributedDataParallel, DataParallel)):
            yield type(module).__name__
        elif fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            yield "FullyShardedDataParallel"
        elif fsdp is not None and isinstance(module, fsdp.FSDPModule):
            yield "fully_shard"


def _is_compiled(module: torch.nn.Module) -> bool:
    wrapped = "_orig_mod" in module._modules
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None
