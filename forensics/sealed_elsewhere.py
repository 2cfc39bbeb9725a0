"""Checkpoints that a run's guard sealed and that lie outside of the run's folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sdc_guard.archive.convictions import attempts_of, read_convictions
from sdc_guard.archive.sealing.doubts import sealed_doubts
from sdc_guard.archive.sealing.listed import listed_in

from .checkpoint import Checkpoint
from .gathered import gathered
from .locations import is_local
from .readers.reader import Reader


def sealed_elsewhere(
    path: Path, found: Iterable[Checkpoint], readers: Sequence[Reader]
) -> list[Checkpoint]:
    """Those that the run's list names and that are still there.

    Args:
        path: a run's folder, or another, which has no list.
        found: what is known already.
        readers: in order of precedence.
    """
    if not is_local(path) or not path.is_dir():
        return []
    known = {one.path.resolve() for one in found}
    archive = path / "archive"
    convictions, attempts = read_convictions(archive), attempts_of(archive)
    new: list[Checkpoint] = []
    for listed in listed_in(path):
        place = listed.path
        if place.resolve() in known or not place.exists():
            continue
        against = sealed_doubts(path, listed, convictions, attempts)
        new += [
            replace(one, status="suspect", reasons=(*one.reasons, *against)) if against else one
            for one in gathered(place, readers)
            if one.path == place
        ]
    return new
