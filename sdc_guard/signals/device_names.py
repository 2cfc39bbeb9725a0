"""What a device is called, for people and across processes."""

from __future__ import annotations

import torch

from .reading import read


def word_for(device: torch.device) -> str:
    """`cpu`, or `cuda:0 (NVIDIA H200)`."""
    if device.type != "cuda":
        return str(device)
    found = read({"name": lambda: torch.cuda.get_device_properties(device).name})
    return f"{device} ({found['name']})"


def device_id(device: torch.device) -> str | None:
    """The UUID of a CUDA device; None for a CPU, which has none."""
    if device.type != "cuda":
        return None
    found = read({"uuid": lambda: f"GPU-{torch.cuda.get_device_properties(device).uuid}"})
    return str(found["uuid"])
