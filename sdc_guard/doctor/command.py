"""All probes together, and what they mean for the exit code."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from .clashes import owners, resolved, shadows
from .extras import requirements
from .file_systems import file_system, places
from .finding import OK, PROBLEM, Finding, Probe, looked_at
from .machine import clock, denormals, devices, threads
from .machine_code import compiled_code
from .run_folder import checked, left, times, written
from .space import disk_space, shared_memory

HOME = Path(__file__).resolve().parents[2]


def examine(run: Path | None = None) -> list[Finding]:
    """What stands in the way on this machine, and in a run's folder.

    Args:
        run: the run's folder, that need not be there yet; the current folder where it is None.

    Raises:
        UsageError: `run` is there, and no folder.
    """
    folder = Path() if run is None else checked(run)
    probes: list[tuple[str, Probe]] = [
        ("versions", versions),
        ("packages", owners),
        ("packages", lambda: resolved(HOME)),
        ("this folder", lambda: shadows(Path.cwd(), HOME)),
        ("packages", requirements),
        ("file system", lambda: file_system(folder)),
        ("disk space", lambda: disk_space(folder)),
        ("/dev/shm", shared_memory),
        ("clock", clock),
        ("threads", threads),
        ("CUDA", devices),
        ("numba's cache", compiled_code),
        ("denormals", denormals),
    ]
    if run is not None:
        probes += [
            ("run", lambda: written(run)),
            ("file system", lambda: places(run)),
            ("ring", lambda: left(run)),
            ("clock", lambda: times(run)),
        ]
    return list(looked_at(probes))


def versions() -> Iterator[Finding]:
    """Of Python and torch."""
    import torch

    yield Finding(OK, "versions", f"Python {platform.python_version()}, torch {torch.__version__}")


def exit_code(found: Sequence[Finding]) -> int:
    """1 with a problem, 0 without one."""
    return int(any(one.level == PROBLEM for one in found))
