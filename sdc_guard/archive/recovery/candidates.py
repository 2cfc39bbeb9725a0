"""The checkpoints of a run, newest first, and what each is worth: by their records alone.

No file of them is read but manifests and seals; whether the bytes are those is seen in copying.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...errors import CheckpointUnreadable
from ...store.lineage import counts, lineage
from ..confirmations import Confirmation, read_confirmations, settled
from ..convictions import attempts_of, read_convictions
from ..folders import WEIGHTS_FILE, all_folders, is_copy, step_named
from ..gate import Known, Opened, Verdict
from ..manifest import FILE, SHARDED, WEIGHTS, FileEntry, Manifest
from ..save import STATE_FILE
from ..sealing.as_manifest import as_manifest
from ..sealing.listed import Listed, listed_in
from ..sealing.seal_file import Seal, seal_at
from ..sharded.files import METADATA

SUPERSEDED = "superseded by a later attempt"
ALONE = "weights alone, without the optimizer: nothing resumes from it"
_NO_SEAL = "it has no seal of a guard"


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be restored.

    Attributes:
        path: its folder, or its file.
        step, attempt: of it; -1 where that is not known.
        status: "clean" where all that is recorded speaks for it.
        reasons: why it is not clean.
        manifest: what is recorded of it; None where it cannot be read.
        seal: of one that another program wrote.
        superseded: whether a later attempt began again from before it.
    """

    path: Path
    step: int
    attempt: int
    status: Verdict
    reasons: tuple[str, ...] = ()
    manifest: Manifest | None = None
    seal: Seal | None = None
    superseded: bool = False

    @property
    def good(self) -> bool:
        """Whether it may be taken without being asked for."""
        return self.status == "clean" and not self.superseded and not self.copy

    @property
    def copy(self) -> bool:
        """Whether it is a copy of weights alone."""
        return self.format == WEIGHTS or (self.seal is None and is_copy(self.path))

    @property
    def doubted(self) -> bool:
        """Whether anything was found against it since it was sealed."""
        return self.manifest is not None and self.reasons != self.manifest.reasons

    @property
    def why(self) -> str:
        """Why it is not good, in a line; "" if it is."""
        if self.superseded:
            return SUPERSEDED
        if self.status == "clean":
            return ALONE if self.copy else ""
        return f"{self.status}: {'; '.join(self.reasons)}" if self.reasons else self.status

    @property
    def format(self) -> str:
        """ "torch", "dcp", or what its seal says."""
        if self.seal is not None:
            return self.seal.format
        return "" if self.manifest is None else self.manifest.format

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Its files with their checksums, the manifest and the seal aside; `xxh3` is "" in
        manifests from before there was one.

        Raises:
            CheckpointUnreadable: nothing is recorded of it, or a file of it lies elsewhere.
        """
        if self.seal is not None:
            return tuple(_sealed_files(self.path, self.seal))
        known = self.manifest
        if known is None:
            raise CheckpointUnreadable("nothing is recorded of its files", where=str(self.path))
        if known.format == SHARDED:
            return known.files
        return (FileEntry(known.file, known.bytes, known.xxh3),)

    def file(self, name: str) -> Path:
        """Where a file of it lies."""
        return self.path if self.seal is not None and self.path.is_file() else self.path / name


def candidates(run: Path, incidents: Sequence[Opened] = ()) -> list[Candidate]:
    """Those of a run's archive, and those that its guard sealed elsewhere; newest first.

    Args:
        run: its folder.
        incidents: of its trace.
    """
    archive = run / "archive"
    known = Known(run, read_convictions(archive), attempts_of(archive), incidents)
    confirmations = read_confirmations(archive)
    found = [
        _own(folder, known, confirmations) for folder in all_folders(archive) if folder.is_dir()
    ]
    found += [_sealed(one, known) for one in listed_in(run)]
    return sorted(found, key=_age, reverse=True)


def of_path(path: Path, run: Path, incidents: Sequence[Opened] = ()) -> Candidate:
    """The one that lies there, judged by what its run knows.

    Args:
        path: a checkpoint's folder or file; of a guard's own the file in its folder, too.
        run: the run's folder.

    Raises:
        CheckpointUnreadable: there is none, or nothing is recorded of it.
    """
    place = _absolute(path)
    if place.name in (STATE_FILE, METADATA, WEIGHTS_FILE) and (place.parent / FILE).is_file():
        place = place.parent
    for one in candidates(run, incidents):
        if place == _absolute(one.path):
            return one
    archive = run / "archive"
    known = Known(run, read_convictions(archive), attempts_of(archive), incidents)
    if (place / FILE).is_file():
        return _own(place, known, read_confirmations(archive))
    seal = seal_at(place) if place.exists() else None
    if seal is None:
        raise CheckpointUnreadable(
            "no checkpoint there that a manifest or a seal tells of",
            where=str(path),
            next_step="name a checkpoint's folder, or a file that was sealed",
        )
    attempt = -1 if seal.guarded is None else seal.guarded.attempt
    return _sealed(Listed(place, seal.step, attempt), known)


def _absolute(path: Path) -> Path:
    """Without "..", but through no link."""
    return Path(os.path.normpath(path.absolute()))


def _own(folder: Path, known: Known, confirmations: Iterable[Confirmation]) -> Candidate:
    try:
        manifest = settled(folder, Manifest.read(folder), confirmations)
    except CheckpointUnreadable as error:
        return Candidate(folder, step_named(folder.name), -1, "incomplete", (error.what,))
    one = Candidate(folder, manifest.step, manifest.attempt, manifest.status, manifest=manifest)
    return _judged(one, manifest, known)


def _sealed(listed: Listed, known: Known) -> Candidate:
    one = Candidate(listed.path, listed.step, listed.attempt, "incomplete")
    if not listed.path.exists():
        return replace(one, status="gone", reasons=("its files were deleted, or moved",))
    try:
        seal = seal_at(listed.path)
        if seal is None:
            return replace(one, reasons=(_NO_SEAL,))
        list(_sealed_files(listed.path, seal))
    except CheckpointUnreadable as error:
        return replace(one, reasons=(error.what,))
    manifest = as_manifest(seal, seal.created)
    if manifest is None:
        return replace(one, status="untested", reasons=(_NO_SEAL,), seal=seal)
    one = replace(one, status=manifest.status, manifest=manifest, seal=seal)
    return _judged(one, manifest, known)


def _judged(one: Candidate, manifest: Manifest, known: Known) -> Candidate:
    """With what is known of it: as `load_checkpoint` has it, and the trace's incidents."""
    against = known.against(one.path, manifest)
    status = "suspect" if against and manifest.status != "corrupt" else manifest.status
    spans = lineage(known.attempts)
    live = not spans or counts(spans, manifest.attempt, manifest.step)
    reasons = (*manifest.reasons, *against)
    return replace(one, status=status, reasons=reasons, superseded=not live)


def _age(one: Candidate) -> tuple[int, int, bool, bool, float]:
    created = 0.0 if one.manifest is None else float(one.manifest.created)
    return one.step, one.attempt, not one.copy, one.seal is None, created


def _sealed_files(path: Path, seal: Seal) -> Iterable[FileEntry]:
    if path.is_file() and len(seal.files) == 1:
        ((size, value),) = seal.files.values()
        yield FileEntry(path.name, size, value)
        return
    for name, (size, value) in seal.files.items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise CheckpointUnreadable(
                f"its seal names {name!r}, which is not in it", where=str(path)
            )
        yield FileEntry(name, size, value)
