"""Opening a run by its location: a folder, or a run in a lake."""

from __future__ import annotations

from pathlib import Path

from .reader import RunReader
from .trace_reader import TraceReader


def open_run(location: str | Path, attempt: int | None = None) -> TraceReader:
    """A reader of the run at a location.

    Args:
        location: a run's folder, or `ducklake:CATALOG?data=DATA&run=RUN` (see `lake.location`).
        attempt: read the run as it was during this attempt; the newest by default.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read` and `LakeReader`.
        LakeUnavailable: the lake cannot be reached.
        UsageError: the run has no such attempt; a lake's location is not understood.
    """
    from ..lake.location import is_lake, parse

    if not is_lake(location):
        return RunReader(location, attempt=attempt)
    from ..lake.reader import LakeReader

    lake, run = parse(str(location))
    return LakeReader(lake.catalog, lake.data, run, attempt=attempt)
