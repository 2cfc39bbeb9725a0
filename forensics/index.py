"""Which checkpoints there are, in the order of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdc_guard.errors import ArchiveIncomplete, RunNotFound

from .checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from .gathered import gathered
from .locations import look_up
from .neighbours import with_size_hints
from .readers.foreign_file import ENOUGH, lfs_pointer, other_kind
from .readers.known import READERS


def index(path: Path) -> list[Checkpoint]:
    """The checkpoints below `path`, by step, without reading their tensors.

    Of several formats, too, that lie beside each other.

    Args:
        path: a run's folder, its archive, a folder of checkpoints, or one checkpoint.

    Raises:
        RunNotFound: no such path.
        ArchiveIncomplete: no checkpoint below it.
    """
    if not look_up(path):
        raise RunNotFound(
            "no such folder", where=str(path), next_step="give a run's or an archive's folder"
        )
    found = gathered(path, READERS)
    if not found:
        raise ArchiveIncomplete(
            _what_else(path),
            where=str(path),
            next_step="guard.checkpoint writes them to RUN/archive; torch.save files end in .pt",
        )
    return with_size_hints(sorted(found, key=_order))


def _order(one: Checkpoint) -> tuple[int, int, str]:
    return one.step, one.attempt, one.path.name


def _what_else(path: Path) -> str:
    """What a path without a checkpoint is, where that is known."""
    if not path.is_file():  # a folder; a pipe would be waited for
        return "no checkpoint there"
    try:
        with path.open("rb") as file:
            beginning = file.read(ENOUGH)
    except OSError:
        return "no checkpoint there"
    if not beginning:
        return "no checkpoint there: the file is empty (0 bytes)"
    kind = lfs_pointer(beginning) or other_kind(beginning)
    return f"no checkpoint there: {kind}" if kind else "no checkpoint there"


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
