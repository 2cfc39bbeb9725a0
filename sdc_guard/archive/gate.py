"""Every checkpoint of a run against what was recorded of it: its own, and those sealed elsewhere.

Nothing is moved and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import CheckpointUnreadable
from ..store.lineage import counts, lineage
from ..store.run_file import Attempt
from .compare import check_bytes
from .confirmations import read_confirmations, settled
from .convictions import Conviction, attempts_of, read_convictions
from .folders import all_folders, step_named
from .manifest import Manifest
from .sealing.as_manifest import as_manifest
from .sealing.doubts import doubts_by_name, name_in
from .sealing.files import compared_with
from .sealing.listed import Listed, listed_in
from .sealing.seal_file import seal_at

Verdict = Literal["clean", "suspect", "corrupt", "untested", "incomplete", "gone"]
EXIT_DOUBTED: Final = 1
EXIT_INCOMPLETE: Final = 5
Opened = tuple[int, int | None, int, str]
"""Of an incident: the steps at which it opened and closed, the attempt, and how it began."""


@dataclass(frozen=True)
class Examined:
    """What was found of one checkpoint.

    Attributes:
        path: its own.
        step, attempt: of it; -1 where that is not known.
        status: corrupt where bytes are not those that were recorded; suspect where it was so when
            it was sealed, or anything speaks against it since; incomplete where it cannot be
            compared; gone where the files were deleted; untested where the bytes are those that
            were sealed and nobody compared them with the training.
        reasons: why it is not clean.
        name: by which convictions and confirmations know it.
        told: what a command said for it.
    """

    path: Path
    step: int
    attempt: int
    status: Verdict
    reasons: tuple[str, ...] = ()
    name: str = ""
    told: str = ""

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {
            "step": self.step,
            "attempt": self.attempt,
            "path": str(self.path),
            "status": self.status,
            "reasons": list(self.reasons),
            "told": self.told,
        }


@dataclass(frozen=True)
class Known:
    """What a run's folder says about all of its checkpoints.

    Attributes:
        run: the folder.
        convictions: what was proven later.
        attempts: of the run.
        incidents: of the trace.
    """

    run: Path
    convictions: Sequence[Conviction]
    attempts: Sequence[Attempt]
    incidents: Sequence[Opened] = ()

    def against(self, path: Path, manifest: Manifest) -> list[str]:
        """What speaks against a checkpoint since it was sealed."""
        found = doubts_by_name(self.run, path, manifest, self.convictions, self.attempts)
        if any(reason.startswith("incident open") for reason in manifest.reasons):
            return found
        step, spans = manifest.trace_step, lineage(self.attempts, manifest.attempt)
        return found + [
            f"in an incident from step {opened} on: {first}"
            for opened, closed, attempt, first in self.incidents
            if opened <= step
            and (closed is None or closed > step)
            and counts(spans, attempt, opened)
        ]


def examine(
    run: Path,
    *,
    last: int | None = None,
    jobs: int = 1,
    incidents: Sequence[Opened] = (),
    tell: Callable[[Examined], None] = lambda _: None,
) -> list[Examined]:
    """Compare the bytes of a run's checkpoints, and collect what is known of each.

    Args:
        run: its folder.
        last: only so many, the newest by step.
        jobs: read so many at once.
        incidents: of the trace.
        tell: called with each when it is done, in any order.
    """
    archive = run / "archive"
    known = Known(run, read_convictions(archive), attempts_of(archive), incidents)
    confirmations = read_confirmations(archive)
    own = [
        (folder, _manifest(folder, confirmations))
        for folder in all_folders(archive)
        if folder.is_dir()
    ]
    calls: list[tuple[int, Callable[[], Examined]]] = []
    for folder, manifest in own:
        step = manifest.step if isinstance(manifest, Manifest) else step_named(folder.name)
        calls.append((step, lambda f=folder, m=manifest: _own(f, m, known)))  # type: ignore[misc] # because mypy knows no types of defaults
    for one in listed_in(run):
        calls.append((one.step, lambda one=one: _sealed(one, known)))  # type: ignore[misc] # likewise
    calls.sort(key=lambda call: call[0])
    chosen = calls[-last:] if last else calls

    def done(call: tuple[int, Callable[[], Examined]]) -> Examined:
        found = call[1]()
        tell(found)
        return found

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(done, chosen))


def exit_code(found: Iterable[Examined]) -> int:
    """0 if all are clean, 1 if one is doubted, 5 if one could not be compared, or there is none."""
    statuses = {one.status for one in found if one.status != "gone"}
    if statuses & {"corrupt", "suspect"}:
        return EXIT_DOUBTED
    return 0 if statuses == {"clean"} else EXIT_INCOMPLETE


def _manifest(folder: Path, confirmations: list[Any]) -> Manifest | str:
    try:
        return settled(folder, Manifest.read(folder), confirmations)
    except CheckpointUnreadable as error:
        return error.what


def _own(folder: Path, manifest: Manifest | str, known: Known) -> Examined:
    """One that `Guard.checkpoint` wrote."""
    if isinstance(manifest, str):
        return Examined(folder, step_named(folder.name), -1, "incomplete", (manifest,), folder.name)
    one = Examined(folder, manifest.step, manifest.attempt, "clean", (), folder.name)
    try:
        sound = check_bytes(folder, manifest)
    except CheckpointUnreadable as error:
        return replace(one, status="incomplete", reasons=(error.what,))
    except OSError as error:
        why = error.strerror or str(error)
        return replace(one, status="incomplete", reasons=(f"cannot be read: {why}",))
    if not sound.sound:
        return replace(one, status="corrupt", reasons=tuple(sound.reasons()))
    return _with_judgement(one, manifest, known)


def _sealed(listed: Listed, known: Known) -> Examined:
    """One that another program wrote."""
    name = name_in(known.run, listed.path)
    one = Examined(listed.path, listed.step, listed.attempt, "clean", (), name)
    if not listed.path.exists():
        return replace(one, status="gone", reasons=("its files were deleted, or moved",))
    try:
        seal = seal_at(listed.path)
        manifest = None if seal is None else as_manifest(seal)
        if seal is None or manifest is None:
            return replace(one, status="incomplete", reasons=("it has no seal of a guard",))
        compared = compared_with(seal, listed.path)
    except CheckpointUnreadable as error:
        return replace(one, status="incomplete", reasons=(error.what,))
    if compared.changed:
        reasons = tuple(f"{file}: {why}" for file, why in compared.changed.items())
        return replace(one, status="corrupt", reasons=reasons)
    return _with_judgement(one, manifest, known)


def _with_judgement(one: Examined, manifest: Manifest, known: Known) -> Examined:
    """One whose bytes are those that were recorded: with what else is known."""
    against = known.against(one.path, manifest)
    reasons = (*manifest.reasons, *against)
    if against or manifest.status in ("suspect", "corrupt"):
        return replace(one, status="suspect", reasons=reasons)
    return replace(one, status=manifest.status, reasons=reasons)
