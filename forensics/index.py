"""Which checkpoints there are, in the order of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.errors import ArchiveIncomplete, CheckpointUnreadable, RunNotFound

from .checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from .neighbours import with_size_hints
from .readers.known import READERS, reader_of

_CHECKED_HERE: Final = ("torch", "torch-legacy")


def index(path: Path) -> list[Checkpoint]:
    """The checkpoints below `path`, by step, without reading their tensors.

    The first format of which there is one counts: what else lies there is of another kind.

    Args:
        path: a run's folder, its archive, a folder of checkpoints, or one checkpoint.

    Raises:
        RunNotFound: no such path.
        ArchiveIncomplete: no checkpoint below it.
    """
    if not path.exists():
        raise RunNotFound(
            "no such folder", where=str(path), next_step="give a run's or an archive's folder"
        )
    found = next((found for reader in READERS if (found := reader.find(path))), [])
    if not found:
        raise ArchiveIncomplete(
            "no checkpoint there",
            where=str(path),
            next_step="guard.checkpoint writes them to RUN/archive; torch.save files end in .pt",
        )
    found = [_checked(one) if one.format in _CHECKED_HERE else one for one in found]
    return with_size_hints(sorted(found, key=_order))


def _order(one: Checkpoint) -> tuple[int, int, str]:
    return one.step, one.attempt, one.path.name


def _checked(one: Checkpoint) -> Checkpoint:
    """With the result of reading every byte: until `scan` does, this command tells of damage."""
    if not one.readable:
        return one
    try:
        damaged = reader_of(one.format).check(one).damaged
    except CheckpointUnreadable as error:
        return replace(one, reasons=(error.what,), readable=False)
    reasons = tuple(f"{name}: {reason}" for name, reason in damaged.items())
    return replace(one, status="corrupt", reasons=reasons) if damaged else one


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
