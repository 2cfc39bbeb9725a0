"""Checkpoints of an archive that a replay has convicted since they were sealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdc_guard.archive.convictions import attempts_of, doubts, read_convictions
from sdc_guard.archive.manifest import Manifest

from .checkpoint import Checkpoint


def doubted(archive: Path, found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The same checkpoints; those that a conviction covers are suspect, with its reason.

    Args:
        archive: the folder that they lie in.
        found: of that archive, each with a readable manifest unless it cannot be judged.
    """
    convictions = read_convictions(archive)
    if not convictions:
        return list(found)
    attempts = attempts_of(archive)
    told = []
    for one in found:
        if one.readable:
            against = doubts(one.path, Manifest.read(one.path), convictions, attempts)
            if against:
                one = replace(one, status="suspect", reasons=(*one.reasons, *against))
        told.append(one)
    return told
