"""Rank 0's part of a sharded save: all is acknowledged, so the checkpoint gets its name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...digest import Digest
from ...digest.reference import MASK64
from ...store.atomic import fsync_folder, publish_text
from ..manifest import SHARDED, Manifest, Status, TensorEntry
from ..save import LATEST, published, uncompared
from .ack import WRITES, Ack, Written, ack_name, plan_name
from .assign import Assignment
from .files import METADATA, file_entries, write_metadata
from .meeting import NotSaved, listed


@dataclass(frozen=True)
class Commit:
    """What is committed.

    Attributes:
        archive: the run's archive.
        partial: the folder, as it is called until now.
        step, trace_step, attempt: as in `Manifest`.
        assignment: who had to write what.
        layout, environment: as in `Manifest`.
    """

    archive: Path
    partial: Path
    step: int
    trace_step: int
    attempt: int
    assignment: Assignment
    layout: Mapping[str, Any]
    environment: str


def commit(one: Commit, acks: Sequence[Ack]) -> tuple[Path, Manifest]:
    """Give a checkpoint that all ranks have written its manifest and its name; LATEST moves last.

    Args:
        acks: by rank.

    Raises:
        NotSaved: a file or piece is not acknowledged, or not as long as it was.
        OSError: as the file system gave it.
        ValueError: pieces overlap, or leave a hole.
    """
    _check(one, acks)
    written = [item for ack in acks for item in ack.written]
    paths = {name: way for ack in reversed(acks) for name, way in ack.paths.items()}
    keys = {name: tuple(key if k == "l" else str(key) for k, key in w) for name, w in paths.items()}
    write_metadata(one.partial, written, keys)
    _delete_plans(one.partial, len(acks))
    manifest = _manifest(one, acks, written)
    manifest.write(one.partial)
    fsync_folder(one.partial)
    folder = published(one.partial, one.archive, one.step, one.attempt)
    fsync_folder(one.archive)
    publish_text(one.archive / LATEST, folder.name + "\n")
    return folder, manifest


def _check(one: Commit, acks: Sequence[Ack]) -> None:
    for ack in acks:
        expected = one.assignment.places[ack.rank]
        if len(ack.written) != len(expected):
            raise NotSaved(
                f"rank {ack.rank} acknowledged {len(ack.written)} of {len(expected)} pieces"
            )
        sizes = {file.name: file.bytes for file in ack.files}
        for item in ack.written:
            if item.first + item.bytes > sizes.get(item.file, -1):
                raise NotSaved(f"rank {ack.rank} did not acknowledge {item.file}")
        for name, size in sizes.items():
            path = one.partial / name
            found = path.stat().st_size if path.is_file() else -1
            if found != size:
                raise NotSaved(f"{name} of rank {ack.rank} is not as it was acknowledged")


def _delete_plans(folder: Path, ranks: int) -> None:
    for name in (WRITES, *map(plan_name, range(ranks))):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _manifest(one: Commit, acks: Sequence[Ack], written: Sequence[Written]) -> Manifest:
    files = [file for ack in acks for file in ack.files]
    own = [METADATA, *(ack_name(ack.rank) for ack in acks)]
    files += file_entries(one.partial, own)
    reasons = (*_reasons(acks), *one.assignment.reasons)
    tensors = _tensors(acks, written)
    untested = uncompared(tensors.values())
    status: Status = "suspect" if reasons else "untested" if untested else "clean"
    reasons += (untested,) if untested else ()
    metadata = next(file for file in files if file.name == METADATA)
    return Manifest(
        one.step, one.trace_step, one.attempt, status, reasons, METADATA,
        sum(file.bytes for file in files), tensors, time.time(), metadata.xxh3,
        format=SHARDED, files=tuple(sorted(files, key=lambda file: file.name)),
        world_size=len(acks), layout=dict(one.layout), environment=one.environment,
        notes=one.assignment.notes,
    )  # fmt: skip


def _reasons(acks: Sequence[Ack]) -> list[str]:
    """Each reason once, with the ranks that say it unless all do."""
    ranks: dict[str, list[int]] = {}
    for ack in acks:
        for reason in ack.reasons:
            ranks.setdefault(reason, []).append(ack.rank)
    return [
        reason if len(said) == len(acks) else f"{listed(said)}: {reason}"
        for reason, said in ranks.items()
    ]


def _tensors(acks: Sequence[Ack], written: Sequence[Written]) -> dict[str, TensorEntry]:
    """Of each whole tensor: the digest is the sum of its pieces'."""
    placements = {name: told for ack in acks for name, told in ack.placements.items()}
    sums: dict[str, list[int]] = {}
    found = {}
    for item in written:
        piece = item.piece
        if piece.is_value or piece.entry is None:
            continue
        total = sums.setdefault(piece.name, [0, 0, 0])
        for place, value in enumerate(piece.entry.digest):
            total[place] = (total[place] + value) & MASK64
        found[piece.name] = piece
    entries = {}
    for name, piece in sorted(found.items()):
        entry = piece.entry
        assert entry is not None
        whole = TensorEntry.of(Digest(*sums[name]), entry.kind, entry.layer)
        entries[name] = replace(
            whole, dtype=piece.dtype, shape=piece.shape, placements=placements.get(name)
        )
    return entries
