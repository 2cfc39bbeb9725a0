"""What was proven later of checkpoints that a run's guard sealed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import CheckpointUnreadable
from ...store.run_file import Attempt
from ..convictions import Conviction, doubts
from ..manifest import Manifest
from .as_manifest import as_manifest
from .listed import Listed
from .seal_file import seal_at


def name_in(run: Path, path: Path) -> str:
    """By which name convictions and confirmations of a run know a checkpoint outside of it."""
    return os.path.relpath(path, run)


def doubts_by_name(
    run: Path,
    path: Path,
    manifest: Manifest,
    convictions: Iterable[Conviction],
    attempts: Sequence[Attempt],
) -> list[str]:
    """Why a checkpoint is doubted since it was sealed, wherever it lies; empty if it is not."""
    known = list(convictions)
    found = doubts(path, manifest, known, attempts)
    name = name_in(run, path)
    # a later attempt may have saved another one under the same path since
    return found + [
        one.text()
        for one in known
        if one.checkpoint == name != path.name and one.attempt == manifest.attempt
    ]


def sealed_doubts(
    run: Path, listed: Listed, convictions: Sequence[Conviction], attempts: Sequence[Attempt]
) -> list[str]:
    """The same of one in a run's list, by its seal; nothing where it has none that can be read."""
    if not convictions:
        return []
    try:
        seal = seal_at(listed.path)
    except CheckpointUnreadable:
        return []
    manifest = None if seal is None else as_manifest(seal)
    if manifest is None:
        return []
    return doubts_by_name(run, listed.path, manifest, convictions, attempts)
