"""Checkpoints of a guard's archive that several ranks wrote, by what their manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sharded.opened import OpenedFolder
from sdc_guard.errors import CheckpointMismatch

from ..checkpoint import Checkpoint
from ..content import Integrity


def describe(folder: Path, manifest: Manifest, format: str) -> Checkpoint:
    """A checkpoint by its manifest and its files' sizes."""
    short = [
        f"{name} is missing" if size is None else f"{name} has {size:,} of {needed:,} bytes"
        for name, size, needed in _sizes(folder, manifest)
        if size is None or size < needed
    ]
    if not short:
        return Checkpoint(
            manifest.step, folder, format, manifest.status, manifest.reasons, manifest.attempt,
            notes=manifest.notes,
        )  # fmt: skip
    more = f"; and {len(short) - 1} more" if len(short) > 1 else ""
    reason = f"unreadable: {short[0]}{more}"
    return Checkpoint(
        manifest.step, folder, format, "untested", (reason,), manifest.attempt, readable=False
    )


def _sizes(folder: Path, manifest: Manifest) -> Iterator[tuple[str, int | None, int]]:
    """(name, bytes that there are, bytes that were written) of each file; None: it is gone."""
    for file in manifest.files:
        path = folder / file.name
        yield file.name, path.stat().st_size if path.is_file() else None, file.bytes


def check(folder: Path, manifest: Manifest) -> Integrity:
    """Read every byte, and compare it with the manifest's checksums and digests.

    Raises:
        CheckpointUnreadable: a file that says where the tensors are is missing or damaged.
    """
    try:
        opened = OpenedFolder(folder, manifest)
    except CheckpointMismatch as error:
        return Integrity({manifest.file: error.what}, (), (), 0)
    damaged = dict(opened.differences())
    tensors = {name for name, (one, *_) in opened.written.items() if not one.piece.is_value}
    damaged |= {name: "not in the files" for name in manifest.tensors if name not in tensors}
    intact = tuple(sorted(tensors - damaged.keys()))
    return Integrity(damaged, intact, (), manifest.bytes)
