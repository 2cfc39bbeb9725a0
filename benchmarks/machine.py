"""The machine that a benchmark ran on, for the line above its tables."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, load of the last minute, and Python's version."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((x.partition(":")[2].strip() for x in lines if "model name" in x), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def line(described: dict[str, Any]) -> str:
    """A description as one line; what is None is left out."""
    return ", ".join(f"{key} {value}" for key, value in described.items() if value is not None)
