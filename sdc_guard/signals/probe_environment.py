"""What the bits of a probe's answer depend on: answers are only compared where it is the same."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any, Final

import torch

from .arithmetic import settings
from .hardware import hardware
from .probe import VERSION
from .reading import Part, read

_BUILD: Final = ("machine", "cpu", "libc", "torch_build", "cuda", "hip", "cudnn", "driver")
# a device's arithmetic knows nothing of these
_OF_THE_HOST: Final = (
    *("cpu", "machine", "libc", "threads", "cpu_capability", "flush_denormal"),
    *("mkldnn", "mkldnn_flags"),
)
# nothing that the probe computes depends on these: it has no convolution, no fused attention
_IRRELEVANT: Final = (
    *("threads_interop", "default_dtype", "cudnn_flags", "sdpa"),
    "matmul_precision",  # "precision" says it too
)
_IRRELEVANT_VARIABLES: Final = (
    *("NCCL_", "PYTHONHASHSEED", "OPENBLAS_"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),  # "threads" says what came of them
)


def built(device: torch.device) -> dict[str, Any]:
    """What does not change while a process runs: kind of device, versions; JSON values only.

    Serial numbers and names of machines are not in it: two devices of one kind have the same.
    """
    known = hardware()
    parts: dict[str, Part] = {name: known[name] for name in _BUILD}
    parts |= {"probe": lambda: VERSION, "torch": lambda: str(torch.__version__)}
    if device.type == "cuda":
        parts |= {"device": lambda: _kind_of(device)}
        parts = {name: part for name, part in parts.items() if name not in _OF_THE_HOST}
    else:
        parts |= {"device": lambda: "cpu", "cpu_flags": _instructions}
    return read(parts)


def in_force(device: torch.device) -> dict[str, Any]:
    """The arithmetic settings at this moment that the probe depends on; JSON values only."""
    parts = settings()
    for name in (*_IRRELEVANT, *(_OF_THE_HOST if device.type == "cuda" else ())):
        parts.pop(name, None)
    found = read(parts)
    for name in ("variables", "threads_env"):
        if isinstance(value := found.get(name), dict):
            found[name] = {
                k: v for k, v in value.items() if not k.startswith(_IRRELEVANT_VARIABLES)
            }
    return found


def key_of(environment: dict[str, Any]) -> str:
    """16 hexadecimal digits that stand for an environment."""
    text = json.dumps(environment, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _kind_of(device: torch.device) -> str:
    found = torch.cuda.get_device_properties(device)
    # fewer multiprocessors, as of a part of a device, are given other kernels
    return (
        f"{found.name}, {found.major}.{found.minor}, {found.multi_processor_count} multiprocessors"
    )


def _instructions() -> str:
    """A hash of the processor's features: a virtual machine may hide some from the libraries."""
    if platform.system() != "Linux":
        return ""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            features = " ".join(sorted(value.split()))
            return hashlib.blake2b(features.encode(), digest_size=8).hexdigest()
    return ""
