"""What the bits of a training run depend on, besides its code and data."""

from __future__ import annotations

import os
import platform
import socket
import sys
from typing import Any

import torch

_PACKAGES = ("numpy", "torch", "triton", "transformers", "lightning", "accelerate", "deepspeed")


def environment_fingerprint(optimizer: torch.optim.Optimizer, world_size: int) -> dict[str, Any]:
    """Settings and versions that are known to change the bits of a step; JSON values only."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": socket.gethostname(),
        "packages": _versions(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "devices": _devices(),
        "optimizer": type(optimizer).__name__,
        "optimizer_flags": {
            flag: optimizer.defaults.get(flag) for flag in ("foreach", "fused", "capturable")
        },
        "world_size": world_size,
        "threads_env": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR")
            if name in os.environ
        },
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """What changed from one fingerprint to another: name to [before, now]."""
    names = sorted(set(before) | set(now))
    return {
        name: [before.get(name), now.get(name)]
        for name in names
        if before.get(name) != now.get(name)
    }


def _versions() -> dict[str, str]:
    loaded = ((name, sys.modules.get(name)) for name in _PACKAGES)
    return {name: str(getattr(module, "__version__", "?")) for name, module in loaded if module}


def _devices() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
