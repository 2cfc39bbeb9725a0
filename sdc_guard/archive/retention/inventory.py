"""Reading the state of a run's archive; whatever cannot be read stands in the way of deleting."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...errors import ArchiveIncomplete, CheckpointUnreadable, SdcGuardError
from ...store.lineage import counts, lineage
from ...store.run_file import Attempt, RunFile
from .. import convictions
from ..confirmations import Confirmation, read_confirmations, settled
from ..folders import NAME
from ..manifest import FILE, SHARDED, WEIGHTS, Manifest
from ..save import LATEST
from .pins import read_pins
from .searches import open_searches
from .stored import Archive, Stored
from .trace_incidents import open_incidents

SESSIONS: Final = "SDC_BISECT_SESSION"  # where searches may be that lie elsewhere


class Inventory:
    """Looks at the archive of a guarded run; manifests that did not change are read once.

    Args:
        run: the run's folder.

    Raises:
        RunNotFound, RunFormatError: no guard recorded there, or run.json is damaged.
        ArchiveIncomplete: it has no archive.
    """

    def __init__(self, run: Path) -> None:
        RunFile.read(run)
        self.run, self.archive = run, run / "archive"
        if not self.archive.is_dir():
            raise ArchiveIncomplete(
                "there is no archive that guard.checkpoint wrote",
                where=str(self.archive),
                next_step="checkpoints that other code saved are not deleted",
            )
        self._read: dict[tuple[str, tuple[int, int, int]], Manifest] = {}
        self._confirmed: list[Confirmation] = []

    def look(self, now: float) -> Archive:
        """The archive as it is.

        Raises:
            RunFormatError: run.json is damaged.
            OSError: the folder cannot be listed.
        """
        attempts = RunFile.read(self.run).attempts
        spans = lineage(attempts)
        known = convictions.read_convictions(self.archive)
        self._confirmed = read_confirmations(self.archive)
        stored = tuple(
            self._stored(folder, attempts, spans, known)
            for folder in sorted(self.archive.iterdir())
            if NAME.fullmatch(folder.name) and (folder.is_dir() or folder.is_symlink())
        )
        archive = Archive(stored, latest=self._latest())
        try:
            convictions_known(self.archive, known)
            archive = replace(archive, pins=read_pins(self.archive))
            archive = replace(archive, incidents=open_incidents(self.run))
            elsewhere = os.environ.get(SESSIONS)
            searched = [self.run / "bisect", self.archive / ".sdc-bisect"]
            searched += [Path(elsewhere)] if elsewhere else []
            archive = replace(archive, spans=open_searches(searched, now))
        except (SdcGuardError, OSError) as error:
            what = error.what if isinstance(error, SdcGuardError) else str(error)
            archive = replace(archive, obstacles=(what,))
        return archive

    def _latest(self) -> str | None:
        try:
            return (self.archive / LATEST).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None

    def _stored(
        self,
        folder: Path,
        attempts: Sequence[Attempt],
        spans: Sequence[tuple[int, int, int]],
        known: Sequence[convictions.Conviction],
    ) -> Stored:
        named = NAME.fullmatch(folder.name)
        step = int(named[1]) if named else 0
        try:
            identity = identity_of(folder)
            manifest = settled(folder, self._manifest(folder, identity), self._confirmed)
            size = _size(folder, manifest)
        except CheckpointUnreadable as error:
            return Stored(folder.name, step, unknown=error.what)
        except OSError as error:
            return Stored(folder.name, step, unknown=error.strerror or str(error))
        return Stored(
            folder.name,
            manifest.step,
            manifest.trace_step,
            manifest.attempt,
            float(manifest.created),
            size,
            manifest.status,
            doubted=bool(convictions.doubts(folder, manifest, known, attempts)),
            superseded=bool(spans) and not counts(spans, manifest.attempt, manifest.step),
            copy=manifest.format == WEIGHTS,
            has_weights=any(one.kind == "param" for one in manifest.tensors.values()),
            identity=identity,
        )

    def _manifest(self, folder: Path, identity: tuple[int, int, int]) -> Manifest:
        key = (folder.name, identity)
        if key not in self._read:
            self._read[key] = Manifest.read(folder)
        return self._read[key]


def identity_of(folder: Path) -> tuple[int, int, int]:
    """Inode, size and time of modification of a checkpoint's manifest.

    Raises:
        CheckpointUnreadable: there is none, or the folder is a link.
        OSError: it cannot be looked at.
    """
    if folder.is_symlink():
        raise CheckpointUnreadable("a link to elsewhere", where=str(folder))
    try:
        found = (folder / FILE).stat(follow_symlinks=False)
    except FileNotFoundError:
        raise CheckpointUnreadable(f"no {FILE} there", where=str(folder)) from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def convictions_known(archive: Path, known: Sequence[convictions.Conviction]) -> None:
    """Make sure that every conviction was read.

    Raises:
        CheckpointUnreadable: a line is damaged: a checkpoint may count as clean that is not.
        OSError: the file cannot be read.
    """
    path = archive / convictions.FILE
    if not path.exists():
        return
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    if len(lines) != len(known):
        what = f"{len(lines) - len(known)} lines of {convictions.FILE} are damaged"
        raise CheckpointUnreadable(what, where=str(path))


def _size(folder: Path, manifest: Manifest) -> int:
    """Bytes of a checkpoint's folder, which must hold what a guard writes and nothing else."""
    if type(manifest.created) not in (int, float) or not math.isfinite(manifest.created):
        raise CheckpointUnreadable("its manifest has no time", where=str(folder))
    written = {file.name: file.bytes for file in manifest.files}
    if manifest.format != SHARDED:
        written = {manifest.file: manifest.bytes}
    sizes = {}
    for path in folder.iterdir():
        found = path.stat(follow_symlinks=False)
        if path.name not in (FILE, *written) or path.is_symlink() or path.is_dir():
            what = f"{path.name} is there, which no guard writes, or not now"
            raise CheckpointUnreadable(what, where=str(folder))
        sizes[path.name] = found.st_size
    for name, size in written.items():
        if sizes.get(name) != size:
            what = f"{name} is not as large as it was saved"
            raise CheckpointUnreadable(what, where=str(folder))
    return sum(sizes.values())
