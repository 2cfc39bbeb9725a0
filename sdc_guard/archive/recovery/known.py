"""What a command knows of a run before it takes one of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import SdcGuardError
from ...store.incident_spans import incident_spans
from ...store.reader import RunReader
from ...store.run_file import RunFile
from ..gate import Opened


def incidents_of(run: Path, note: Callable[[str], None]) -> list[Opened]:
    """The incidents of a run's trace.

    A run whose description or trace is lost or damaged has its checkpoints all the same: that is
    told, and they are judged by their manifests.

    Args:
        run: its folder.
        note: called with a line for what is not known.

    Raises:
        SdcGuardError: it is no run, and has no archive.
    """
    try:
        RunFile.read(run)
        with RunReader(run) as reader:
            return incident_spans(reader)
    except SdcGuardError as error:
        if not (run / "archive").is_dir():
            raise
        note(f"incidents are not known: {error}")
        return []
