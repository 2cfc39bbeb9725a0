"""The machine: processor, accelerators, their drivers and libraries. Initialises no CUDA."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import platform
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from .reading import Part, read

_DRIVER = Path("/proc/driver/nvidia/version")


def hardware() -> dict[str, Part]:
    """By name; each is read when it is called."""
    nvidia = cache(_nvidia)  # one visit to the driver for all of them
    return {
        "machine": platform.machine,
        "cpu": _processor,
        "libc": lambda: os.confstr("CS_GNU_LIBC_VERSION"),
        "torch_build": _build,
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "cudnn": _cudnn,
        "nccl": _nccl,
        "driver": lambda: nvidia()["driver"],
        "devices": lambda: nvidia()["devices"],
        "device_ids": lambda: nvidia()["device_ids"],
    }


def serial_of(uuid: str) -> str | None:
    """The serial number of the NVIDIA device of this UUID; None where nothing tells it."""
    with _nvml() as nvml:
        return _id(nvml, uuid)["serial"]


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "CPU part"):
                    return value.strip()
    except OSError:
        pass
    return platform.processor()


def _build() -> str:
    """Commit and compilers, libraries and flags that torch was built with, in short."""
    lines = [line for line in torch.__config__.show().splitlines() if "usage:" not in line]
    content = "\n".join([str(torch.version.git_version), *lines]).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _cudnn() -> int | None:
    version: Callable[[], int | None] = torch.backends.cudnn.version
    return version()


def _nccl() -> str | None:
    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return None
    version: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    return ".".join(map(str, version()))


def _nvidia() -> dict[str, Any]:
    """Driver, names and ids of the devices, as far as they are known without starting CUDA."""
    if torch.version.cuda is None:
        return {"driver": None, "devices": [], "device_ids": []}
    with _nvml() as nvml:
        devices = cache(partial(_devices, nvml))
        return read(
            {
                "driver": partial(_driver, nvml),
                "devices": lambda: [name for name, _ in devices()],
                "device_ids": lambda: [_id(nvml, uuid) for _, uuid in devices()],
            }
        )


def _devices(nvml: Any) -> list[tuple[str, str]]:
    """Name and UUID of each device; those that the process sees, once it has started CUDA."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no types here
        visible = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return [(device.name, f"GPU-{device.uuid}") for device in visible]
    handles = [] if nvml is None else _handles(nvml)
    return [(_text(nvml.nvmlDeviceGetName(x)), _text(nvml.nvmlDeviceGetUUID(x))) for x in handles]


def _driver(nvml: Any) -> str | None:
    if nvml is not None:
        return _text(nvml.nvmlSystemGetDriverVersion())
    if not _DRIVER.exists():
        return None
    found = re.search(r"\s(\d+\.[\d.]+)\s", _DRIVER.read_text(encoding="utf-8"))
    return found.group(1) if found else None


def _id(nvml: Any, uuid: str) -> dict[str, str | None]:
    """UUID and serial number; only server cards have the latter."""
    serial = None
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            serial = _text(nvml.nvmlDeviceGetSerial(nvml.nvmlDeviceGetHandleByUUID(uuid)))
    return {"uuid": uuid, "serial": serial}


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older releases: bytes


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVIDIA's management library, which needs no CUDA; None where it is not at hand."""
    nvml: Any = None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - because it is optional, and may refuse in any way
        nvml = None
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()
