"""What a command knows of a run before it takes one of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import SdcGuardError, UsageError
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
            if (above := _run_above(run)) is None:
                raise
            raise UsageError(
                "that lies in a run, and is none", where=str(run), next_step=f"give {above}"
            ) from None
        note(f"incidents are not known: {error}")
        return []


def check_apart(path: Path, run: Path, what: str) -> None:
    """Make sure that nothing is written into a run's archive.

    Args:
        path: to be written to.
        run: the run's folder.
        what: of it, for the error.

    Raises:
        UsageError: it lies there.
    """
    archive, place = (run / "archive").resolve(), path.resolve()
    if archive == place or archive in place.parents:
        raise UsageError(
            f"{what} lies in the archive", where=str(path), next_step="name a folder elsewhere"
        )


def _run_above(path: Path) -> Path | None:
    """The run that an archive or a checkpoint lies in."""
    for above in list(path.absolute().parents)[:3]:
        if (above / "archive").is_dir() and (above / "run.json").is_file():
            return above
    return None
