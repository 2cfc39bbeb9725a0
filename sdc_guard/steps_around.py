"""What the steps around one left, by the trace of a run that goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from .archive.other_step import Named
from .digest import Digest
from .digest.reference import MASK64
from .store import queries
from .store.reader import RunReader
from .store.writer import Writer

_STEPS: Final = 8  # before and after
_SECONDS: Final = 5.0  # in which those after it may still come


def steps_around(
    run: Path, rank: int, step: int, attempt: int, writer: Writer, *, patient: bool
) -> dict[int, dict[Named, Digest]]:
    """The digests of what the steps around a step left on a rank, that step's own among them.

    Args:
        run: the run's folder.
        rank: whose trace is read.
        step: the middle one of 17.
        attempt: that ran it.
        writer: of the trace.
        patient: whether to wait a moment for later steps: they may be on their way into the trace.

    Raises:
        SdcGuardError: the run cannot be read.
    """
    end = time.monotonic() + _SECONDS
    while True:
        writer.flush(_SECONDS)
        with RunReader(run, attempt=attempt) as reader:
            rows = queries.left_by_steps(reader, rank, max(0, step - _STEPS), step + _STEPS)
            found: dict[int, dict[Named, Digest]] = {}
            for row in rows.to_pylist():
                digest = Digest(*(row[name] & MASK64 for name in ("h", "s1", "s2")))
                found.setdefault(row["step"], {})[row["kind"], row["name"]] = digest
        if not patient or max(found, default=step) > step or time.monotonic() > end:
            return found
        time.sleep(0.1)
