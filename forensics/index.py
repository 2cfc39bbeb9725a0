"""Which checkpoints there are, in the order of their steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sdc_guard.archive.foreign_file import ENOUGH, lfs_pointer, other_kind
from sdc_guard.archive.regular_file import open_regular
from sdc_guard.errors import ArchiveIncomplete, RunNotFound, no_permission
from sdc_guard.store.lineage import Span, counts

from .checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from .gathered import gathered
from .locations import is_local, look_up
from .neighbours import with_size_hints
from .passed_over import passed_over, what_is
from .readers import guard_archive
from .readers.known import READERS
from .sealed_elsewhere import sealed_elsewhere
from .seals import as_sealed


def index(path: Path) -> list[Checkpoint]:
    """The checkpoints below `path`, by step, without reading their tensors.

    Of several formats, too, that lie beside each other; of a run also those that its guard sealed
    elsewhere.

    Args:
        path: a run's folder, its archive, a folder of checkpoints, or one checkpoint.

    Raises:
        RunNotFound: no such path.
        UsageError: nobody may look there.
        ArchiveIncomplete: no checkpoint below it.
    """
    _must_be_there(path)
    found = gathered(path, READERS)
    found += sealed_elsewhere(path, found, READERS)
    if not found:
        raise ArchiveIncomplete(_what_else(path), where=str(path), next_step=_where_else(path))
    return with_size_hints(sorted(map(as_sealed, found), key=_order))


def _must_be_there(path: Path) -> None:
    if not is_local(path):
        if not look_up(path):
            raise _nothing_there(path, "no such folder")
        return
    try:
        path.stat()
    except PermissionError:
        raise no_permission(path) from None
    except (OSError, ValueError):  # no such path, or one that can be none
        what = "a link to nothing" if path.is_symlink() else "no such folder"
        raise _nothing_there(path, what) from None
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise no_permission(path)


def _nothing_there(path: Path, what: str) -> RunNotFound:
    next_step = "give a run's or an archive's folder"
    return RunNotFound(what, where=str(path), next_step=next_step)


def _order(one: Checkpoint) -> tuple[int, int, str]:
    return one.step, one.attempt, one.path.name


def _what_else(path: Path) -> str:
    """What a path without a checkpoint is, where that is known."""
    if special := what_is(path):
        return f"no checkpoint there: {special}"
    if not path.is_file():
        return "; ".join(["no checkpoint there", *passed_over(path, [])])
    try:
        with open_regular(path) as file:
            beginning = file.read(ENOUGH)
    except OSError:
        return "no checkpoint there"
    if not beginning:
        return "no checkpoint there: the file is empty (0 bytes)"
    kind = lfs_pointer(beginning) or other_kind(beginning)
    return f"no checkpoint there: {kind}" if kind else "no checkpoint there"


def _where_else(path: Path) -> str:
    """Where the guard's checkpoints lie that are a folder deeper; else where they are as a rule."""
    deeper = guard_archive.below(path)
    if not deeper:
        return "guard.checkpoint writes them to RUN/archive; torch.save files end in .pt"
    more = f", or one of {len(deeper) - 1} more" if len(deeper) > 1 else ""
    return f"a guard's checkpoints lie deeper: give {deeper[0]}{more}"


def in_lineage(found: Sequence[Checkpoint], spans: Sequence[Span]) -> list[Checkpoint]:
    """The checkpoints of the attempts that count, by `sdc_guard.store.lineage`."""
    return [
        checkpoint
        for checkpoint in found
        if checkpoint.attempt == UNKNOWN_ATTEMPT
        or counts(spans, checkpoint.attempt, checkpoint.step)
    ]
