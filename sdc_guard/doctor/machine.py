"""The machine: clock, threads, devices, and how it computes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from .finding import NOTE, OK, PROBLEM, WARNING, Finding

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_DRIVERS: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
_TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronized
_TIMEX: Final = 256  # bytes; struct timex has 208
_EARLIEST: Final = 1_735_689_600.0  # 2025-01-01 UTC, before this release: a clock that was lost


def clock(now: float | None = None, state: int | None = None) -> Iterator[Finding]:
    """Whether the clock can be right, and is kept so.

    Args:
        now: seconds since 1970; the clock's by default.
        state: what adjtimex returns; asked for by default.
    """
    now = time.time() if now is None else now
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _EARLIEST:
        yield Finding(PROBLEM, "clock", f"{told} cannot be", "set it: strikes are counted by it")
    elif (_kernel_says() if state is None else state) == _TIME_ERROR:
        yield Finding(
            NOTE, "clock", f"{told}, and the kernel says that nothing keeps it right",
            "with several machines, or a server of files, run chrony or ntpd",
        )  # fmt: skip
    else:
        yield Finding(OK, "clock", told)


def _kernel_says() -> int:
    buffer = ctypes.create_string_buffer(_TIMEX)  # all zero: to be told, and to set nothing
    return int(ctypes.CDLL(None).adjtimex(buffer))


def cores(quota: str | None = None, usable: int | None = None) -> float:
    """Cores that this process may use.

    Args:
        quota: the content of the control group's cpu.max, "200000 100000" for two; read from
            there by default.
        usable: cores that it may run on; asked for by default.
    """
    if usable is None:
        usable = len(os.sched_getaffinity(0))
    if quota is None:
        try:
            quota = _QUOTA.read_text("utf-8")
        except OSError:
            quota = "max"
    most, _, period = quota.strip().partition(" ")
    return float(usable) if most == "max" else min(usable, int(most) / int(period or 100_000))


def threads(
    count: int | None = None, may_use: float | None = None, ranks: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Whether torch computes with more threads than there are cores for it.

    Args:
        count: torch's threads; asked for by default.
        may_use: cores; `cores()` by default.
        ranks: the environment, for LOCAL_WORLD_SIZE; this process's by default.
    """
    import torch

    count = torch.get_num_threads() if count is None else count
    may_use = cores() if may_use is None else may_use
    environment = os.environ if ranks is None else ranks
    here = environment.get("LOCAL_WORLD_SIZE", "")
    processes = int(here) if here.isdecimal() and int(here) else 1
    told = f"{count} of torch, {may_use:g} cores" + (f", {processes} ranks" * (processes > 1))
    if count * processes > max(may_use, 1):
        yield Finding(
            WARNING, "threads", f"{told}: they wait for each other, and the guard's writer too",
            f"OMP_NUM_THREADS={max(1, int(may_use // processes))}",
        )  # fmt: skip
    else:
        yield Finding(OK, "threads", told)


def devices(drivers: tuple[Path, ...] = _DRIVERS) -> Iterator[Finding]:
    """Whether torch sees the CUDA devices that the machine seems to have.

    Args:
        drivers: files that are there where a driver is.
    """
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible!r}"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding(OK, "CUDA", f"{len(names)} devices: {', '.join(names)}{chosen}")
        return
    if not any(path.exists() for path in drivers):
        yield Finding(OK, "CUDA", f"no device here: all is measured on the CPU{chosen}")
        return
    built = torch.version.cuda or torch.version.hip
    why = "torch sees no device" if built else "this build of torch is for CPUs alone"
    yield Finding(
        WARNING, "CUDA", f"there is a driver, but {why}{chosen}",
        "nvidia-smi, and a build of torch that fits the driver",
    )  # fmt: skip


def denormals() -> Iterator[Finding]:
    """Whether the smallest numbers are flushed to zero in this process."""
    from ..signals.arithmetic import settings

    flushed = settings()["flush_denormal"]()
    if flushed:
        yield Finding(
            WARNING, "denormals", "flushed to zero: something that Python loads at its start sets "
            "it (a library linked with -ffast-math does); replays on a machine that keeps them "
            "differ in bits", "torch.set_flush_denormal alike on all machines",
        )  # fmt: skip
    else:
        yield Finding(OK, "denormals", "kept")
