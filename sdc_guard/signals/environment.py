"""What the bits of a training run depend on, besides its code and data.

A fingerprint is made at each start and kept in run.json. Every name is in it, with None or the
reason where there is nothing to say, so that a name that only one of two fingerprints has is one
that the other's version did not know of.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import torch

from .arithmetic import settings
from .hardware import hardware
from .layout import layout, optimizer_classes, optimizer_flags
from .reading import Part, read

# What computes or moves the numbers, or wraps the training loop, by the name it is installed
# under. Versions of installed packages, not only of imported ones: a framework that imports one
# late would otherwise look like a change. Nothing is imported to ask for its version.
_PACKAGES = (
    "numpy", "torch", "triton", "transformers", "lightning", "accelerate", "deepspeed",
    "pytorch_lightning", "peft", "flash_attn", "xformers", "transformer_engine", "apex",
    "bitsandbytes", "torchao", "megatron_core", "safetensors", "duckdb", "pyarrow",
    "sdc_guard_torch",
)  # fmt: skip

# an older name, and the one that says more; the older is compared where the other is missing
_SUPERSEDED = {"matmul_precision": "precision"}


def environment_fingerprint(
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    world_size: int,
    model: torch.nn.Module | None = None,
) -> dict[str, Any]:
    """Settings and versions that are known to change the bits of a step; JSON values only.

    Never raises: what cannot be read is the text of why not. CUDA is not initialised by it.

    Args:
        optimizers: one, or several.
        world_size: number of ranks.
        model: asked for its layout over devices; with its wrappers, if it has any.
    """
    several = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
    parts: dict[str, Part] = {
        "python": platform.python_version,
        "host": socket.gethostname,
        "packages": lambda: {name: _version(name) for name in _PACKAGES},
        "optimizer": lambda: optimizer_classes(several),
        "optimizer_flags": lambda: optimizer_flags(several),
        "world_size": lambda: world_size,
        "layout": lambda: layout(model),
        **hardware(),
        **settings(),
    }
    found: dict[str, Any] = json.loads(json.dumps(read(parts), default=str))
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """What changed from one fingerprint to another: name to [before, now].

    Compared are the names that both have; of a value with names of its own likewise, and only
    those of them that changed are returned.
    """
    changed: dict[str, list[Any]] = {}
    for name in sorted(set(before) & set(now)):
        better = _SUPERSEDED.get(name)
        if better in before and better in now:
            continue
        one, two = before[name], now[name]
        if isinstance(one, dict) and isinstance(two, dict):
            keys = [key for key in one if key in two and one[key] != two[key]]
            one, two = ({key: value[key] for key in keys} for value in (one, two))
        if one != two:
            changed[name] = [one, two]
    return changed


def _version(package: str) -> str | None:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(loaded, str):
        return str(loaded)  # torch's is of a class of its own
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
