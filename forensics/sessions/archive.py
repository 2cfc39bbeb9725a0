"""The checkpoints of what a session is about."""

from __future__ import annotations

from pathlib import Path

from sdc_guard.store.lineage import lineage
from sdc_guard.store.run_file import RunFile

from ..checkpoint import Checkpoint
from ..index import in_lineage, index
from .home import is_guarded


def checkpoints_of(archive: Path, attempt: int | None) -> list[Checkpoint]:
    """The checkpoints by step; of a guarded run those of the attempts that count.

    Raises:
        RunNotFound, ArchiveIncomplete: as `index`.
        RunFormatError: run.json is damaged.
    """
    found = index(archive)
    if not is_guarded(archive):
        return found
    return in_lineage(found, lineage(RunFile.read(archive).attempts, attempt))
