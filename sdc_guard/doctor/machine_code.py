"""Where numba keeps the machine code of the measures from one process to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .finding import OK, WARNING, Finding


def compiled_code(place: str | None = None) -> Iterator[Finding]:
    """Whether the measures are compiled once for a machine, or again in each process.

    Args:
        place: numba's folder for them, "" for none; asked for by default.
    """
    folder = _numbas() if place is None else place
    if folder and _may_write(Path(folder)):
        yield Finding(OK, "numba's cache", folder)
        return
    what = f"{folder} cannot be written" if folder else "no folder for it can be written"
    yield Finding(
        WARNING, "numba's cache", f"{what}: each process compiles the measures again, for seconds",
        "NUMBA_CACHE_DIR=FOLDER",
    )  # fmt: skip


def _numbas() -> str:
    from ..digest import fast_cpu

    for value in vars(fast_cpu).values():
        if hasattr(value, "py_func"):
            return str(value.stats.cache_path or "")
    return ""


def _may_write(folder: Path) -> bool:
    """A folder that is not there yet is made by numba, where the one above it can be written."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    return os.access(there, os.W_OK | os.X_OK)
