"""Which checkpoints there are, in the order of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdc_guard.errors import ArchiveIncomplete, RunNotFound

from .checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from .readers import guard_archive, torch_zip


def index(path: Path) -> list[Checkpoint]:
    """The checkpoints below `path`, by step, without reading their tensors.

    Args:
        path: a run's folder, its archive, a folder of torch.save files, or one checkpoint.

    Raises:
        RunNotFound: no such path.
        ArchiveIncomplete: no checkpoint below it.
    """
    if not path.exists():
        raise RunNotFound(
            "no such folder", where=str(path), next_step="give a run's or an archive's folder"
        )
    found = guard_archive.find(path) or torch_zip.find(path)
    if not found:
        raise ArchiveIncomplete(
            "no checkpoint there",
            where=str(path),
            next_step="guard.checkpoint writes them to RUN/archive; torch.save files end in .pt",
        )
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.attempt))


def in_lineage(
    found: Sequence[Checkpoint], spans: Sequence[tuple[int, int, int]]
) -> list[Checkpoint]:
    """The checkpoints of the attempts that count, by `sdc_guard.store.reader.lineage`."""
    return [
        checkpoint
        for checkpoint in found
        if checkpoint.attempt == UNKNOWN_ATTEMPT
        or any(
            checkpoint.attempt == attempt and first <= checkpoint.step < end
            for attempt, first, end in spans
        )
    ]
