"""What was proven of a run's checkpoints after they were saved.

The trace says what the guard knew at the save. What a replay proved later stands beside the
checkpoints; it is judged here by what `sdc-guard restore` judges by, for every page alike.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sdc_guard.archive.folders import CONVICTIONS

from .records import Checkpoint

if TYPE_CHECKING:
    from sdc_guard.archive.recovery.candidates import Candidate

_Stamp = tuple[int, int]
_Reasons = tuple[str, ...]


def since_saved(run: Path, kept: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The same checkpoints; one that was convicted since is suspect, its proof before all else.

    Where nothing was convicted no other file is looked at. Else the manifests and seals are read,
    once until the convictions or the checkpoints change.

    Args:
        run: the folder; of a run in a lake there is none, and then nothing is known.
        kept: as the trace has them; paths relative to the run's folder.
    """
    stamp = _stamp(run / "archive" / CONVICTIONS)
    if stamp is None:
        return list(kept)
    against = _against(run, stamp, tuple((one.path, one.deleted) for one in kept))
    return [_with(one, against.get(_place(run, one.path), ())) for one in kept]


@functools.lru_cache(maxsize=16)
def _against(run: Path, _stamp: _Stamp, _kept: tuple[tuple[str, bool], ...]) -> dict[str, _Reasons]:
    """Place of each checkpoint that is doubted since it was saved, to the reasons."""
    # here, as it takes torch, which a run without a conviction's first page need not wait for
    from sdc_guard.archive.recovery.candidates import candidates

    return {_place(run, one.path): reasons for one in candidates(run) if (reasons := _since(one))}


def _since(one: Candidate) -> _Reasons:
    # the reasons of the save stand first; those that follow came later
    return () if one.manifest is None else one.reasons[len(one.manifest.reasons) :]


def _with(one: Checkpoint, against: Iterable[str]) -> Checkpoint:
    reasons = [*against]
    if not reasons:
        return one
    status = one.status if one.status == "corrupt" else "suspect"
    reason = "; ".join(filter(None, [*reasons, one.reason]))
    return replace(one, status=status, reason=reason, convicted=True)


def _stamp(path: Path) -> _Stamp | None:
    """Time and size of a file that says something; None of one that does not, or is not there."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size) if found.st_size else None


def _place(run: Path, path: str | Path) -> str:
    return os.path.normpath(run.absolute() / path)
