"""The archive that `guard.checkpoint` writes: a folder per step, with a manifest."""

from __future__ import annotations

import re
from pathlib import Path

from sdc_guard.archive.manifest import FILE, Manifest
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..doubted import doubted

FORMAT = "sdc-guard"
_FOLDER = re.compile(r"step=(\d+)(-a\d+(\.\d+)?)?")


def find(path: Path) -> list[Checkpoint]:
    """The checkpoints of a run's folder, of its archive, or one checkpoint's folder."""
    if path.is_file() and (path.parent / FILE).is_file():
        path = path.parent
    if (path / FILE).is_file():
        return doubted(path.parent, [_describe(path, 0)])
    if not path.is_dir():
        return []
    archive = path / "archive" if (path / "archive").is_dir() else path
    matches = ((_FOLDER.fullmatch(folder.name), folder) for folder in archive.iterdir())
    found = [_describe(folder, int(match[1])) for match, folder in matches if match]
    return doubted(archive, found)


def _describe(folder: Path, named_step: int) -> Checkpoint:
    try:
        manifest = Manifest.read(folder)
    except CheckpointUnreadable as error:
        reason = f"incomplete: {error.what}"
        return Checkpoint(named_step, folder, FORMAT, "untested", (reason,), readable=False)
    file = folder / manifest.file
    size = file.stat().st_size if file.is_file() else 0
    if size < manifest.bytes:
        kind = "truncated" if size else "empty or missing"
        reason = f"unreadable: {kind} ({size:,} of {manifest.bytes:,} bytes)"
        return Checkpoint(
            manifest.step, folder, FORMAT, "untested", (reason,), manifest.attempt, readable=False
        )
    return Checkpoint(
        manifest.step, folder, FORMAT, manifest.status, manifest.reasons, manifest.attempt
    )
