"""Copies within the host, to each device and back, and between devices."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Final

import torch

from .line import Bench, Outcome, Trial
from .patterns import SIZES, in_words
from .ways import Table, every_way, there_and_back

SECTION: Final = "copies"
_AT_ONCE: Final = 5  # copies of a tensor that are held at the same time, temporary ones too
_DRIVER: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))
ADVICE: Final = (
    "the route through the host is right: one known cause of wrong copies between devices is a "
    "virtual machine's or a kernel's IOMMU, or PCIe access control (ACS), in the way of "
    "peer-to-peer transfers; NCCL_P2P_DISABLE=1 shows whether a training without them is right"
)


class OfTheHost:
    """Copies in host memory, by torch's own copying."""

    def put(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        del place
        return tensor.clone()

    def copy(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        del source, target
        return torch.empty_like(tensor).copy_(tensor)

    def fetch(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        return self.copy(tensor, place, place)


class OfDevices:
    """Copies to, from and between CUDA devices.

    Args:
        pinned: whether host memory is pinned, which the device reads and writes by itself.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned

    def put(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        return (tensor.pin_memory() if self._pinned else tensor).to(f"cuda:{place}")

    def copy(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        del source
        return tensor.to(f"cuda:{target}")

    def fetch(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        del place
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        return host.copy_(tensor)


def in_host_memory(bench: Bench) -> Outcome:
    """Host memory to host memory."""
    del bench
    sizes = fitting(_free_host_memory())
    outcome = there_and_back(OfTheHost(), {0: "host"}, sizes).outcome("copies in host memory")
    return with_sizes(outcome, sizes)


def to_devices(pinned: bool, bench: Bench) -> Outcome:
    """Host to device to host."""
    names = {device.index: str(device) for device in bench.devices if device.type == "cuda"}
    sizes = fitting(_free_everywhere(list(names)))
    table = there_and_back(OfDevices(pinned=pinned), names, sizes)
    return with_sizes(table.outcome("to a device and back"), sizes)


def between_devices(bench: Bench) -> Outcome:
    """Each device to each other one."""
    names = [str(device) for device in bench.devices if device.type == "cuda"]
    sizes = fitting(_free_everywhere(list(range(len(names)))))
    return with_sizes(judged(every_way(OfDevices(pinned=False), names, sizes)), sizes)


def judged(table: Table) -> Outcome:
    """What a table between devices says, with advice where only the ways between them are wrong."""
    outcome = table.outcome("between devices")
    if not table.wrong_between:
        return outcome
    return Outcome(outcome.verdict, f"{outcome.reason}; {ADVICE}", outcome.detail, outcome.table)


def fitting(free: int) -> list[int]:
    """Sizes that are tried, given so many bytes of free memory."""
    return [size for size in SIZES if _AT_ONCE * size <= free]


def with_sizes(outcome: Outcome, sizes: list[int]) -> Outcome:
    """INCOMPLETE instead of PASS where memory did not suffice for all sizes."""
    if outcome.verdict != "PASS":
        return outcome
    if not sizes:
        return Outcome("INCOMPLETE", "too little free memory for any size")
    reason = f"{outcome.reason}, up to {in_words(sizes[-1])}"
    if len(sizes) == len(SIZES):
        return Outcome("PASS", reason, outcome.detail)
    left_out = in_words(SIZES[-1])
    return Outcome("INCOMPLETE", f"{reason}; no memory for {left_out}", outcome.detail)


def trials_of(bench: Bench) -> list[Trial]:
    """The lines that make sense with these devices."""
    found = [Trial(SECTION, "in host memory", in_host_memory)]
    count = sum(device.type == "cuda" for device in bench.devices)
    if count:
        found += [
            Trial(SECTION, "to each device and back", partial(to_devices, False)),
            Trial(SECTION, "likewise, in pinned memory", partial(to_devices, True)),
        ]
    if count > 1:
        found.append(Trial(SECTION, "between devices", between_devices))
    return found


def devices_here() -> tuple[list[torch.device], str, bool]:
    """The CUDA devices, else why there is none, and whether one should be there."""
    if torch.cuda.is_available():
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())], "", False
    driver = next((path for path in _DRIVER if path.exists()), None)
    if driver is not None:
        built = torch.version.cuda or torch.version.hip
        why = "torch sees none" if built else "this torch is built for CPUs alone"
        return [], f"a driver is installed ({driver}), and {why}", True
    return [], "no device: copies to and between devices are not tried", False


def _free_host_memory() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):  # what caches would give back is in it
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not told on this system
        return 2 * _AT_ONCE * SIZES[-1]


def _free_everywhere(devices: list[int]) -> int:
    free = [torch.cuda.mem_get_info(device)[0] for device in devices]
    return min([_free_host_memory(), *free])
