"""Thinning checkpoints to their weights, one at a time, each by the state of that moment."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import CheckpointMismatch, CheckpointUnreadable
from ..confirmations import read_confirmations, settled
from ..manifest import Manifest
from ..thinning.copied import proven_copy, publish_copy, write_copy
from ..thinning.payloads import bytes_of_weights
from .delete import renamed
from .lock import alone
from .plan import Plan
from .stored import Stored

_LONGEST: Final = 200  # characters of an error


@dataclass(frozen=True)
class Thin:
    """What came of thinning a checkpoint.

    Attributes:
        stored: the whole one.
        copy: name of the copy's folder; None where the whole one stays.
        freed: bytes.
        why: why it stays whole.
    """

    stored: Stored
    copy: str | None = None
    freed: int = 0
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {"name": self.stored.name, "copy": self.copy, "bytes": self.freed, "why": self.why}


def thin_planned(
    archive: Path, planned: Plan, again: Callable[[], Plan], tell: Callable[[Thin], None]
) -> None:
    """Replace by a copy of their weights what a plan says, as long as a new one lets it go.

    The copy is written, synced, read back and proven under a hidden name. Then, under the
    archive's lock, it gets its own, that is synced, and only then the whole one is renamed and
    removed: killed at any moment this leaves the whole one, the copy, or both, and with both the
    next call goes on. A checkpoint of which no copy can be proven stays whole.

    Args:
        archive: the archive's folder.
        planned: nothing is thinned that is not in it.
        again: reads the state and makes a new plan.
        tell: called with each that was tried.

    Raises:
        SdcGuardError: the lock is held for long, or the state cannot be read.
    """
    stored = {row.stored.name: row.stored for row in planned.rows}
    for name in planned.thins:
        try:
            found = _thinned(archive, stored[name], again)
        except (CheckpointUnreadable, CheckpointMismatch) as error:
            found = Thin(stored[name], why=error.what)
        except OSError as error:
            found = Thin(stored[name], why=" ".join(str(error).split())[:_LONGEST])
        except RuntimeError as error:  # torch.save's, whose text does not say what is the matter
            told = " ".join(str(error).split())[:_LONGEST]
            found = Thin(
                stored[name], why=f"no copy was written, is the disk full? torch says: {told}"
            )
        if found is not None:
            tell(found)


def freed_by_thinning(archive: Path, planned: Plan) -> int:
    """Bytes that thinning would free, about: without names and headers of the copies.

    Of each checkpoint only what describes its tensors is read. One that cannot be read would stay
    whole: 0.
    """
    freed = 0
    for row in planned.rows:
        if row.thins:
            folder = archive / row.stored.name
            with contextlib.suppress(CheckpointUnreadable, CheckpointMismatch, OSError):
                left = bytes_of_weights(folder, Manifest.read(folder))
                freed += max(0, row.stored.bytes - left)
    return freed


def _thinned(archive: Path, stored: Stored, again: Callable[[], Plan]) -> Thin | None:
    """Thin one; None if it is not to be thinned any more."""
    folder = archive / stored.name
    if not _may_go(again(), stored):
        return None
    manifest = settled(folder, Manifest.read(folder), read_confirmations(archive))
    copy, partial = proven_copy(archive, manifest), None
    if copy is None:
        partial = write_copy(archive, folder, manifest)
    try:
        with alone(archive):
            if not _may_go(again(), stored):
                return None
            if partial is not None:
                copy, partial = publish_copy(archive, partial, manifest), None
            hidden = renamed(archive, stored)
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
    if hidden is None or copy is None:
        return None
    shutil.rmtree(hidden, ignore_errors=True)  # what stays is removed another time
    left = sum(path.stat().st_size for path in copy.iterdir())
    return Thin(stored, copy.name, stored.bytes - left)


def _may_go(now: Plan, stored: Stored) -> bool:
    """Whether a new plan lets this very checkpoint go, with a copy or without."""
    return any(row.stored == stored and row.stays is None for row in now.rows)
