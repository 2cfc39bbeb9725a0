"""What is wrong with a guard's archive beside its checkpoints: told, and no checkpoint's damage.

LATEST is for people and scripts: what loads a checkpoint here looks at the folders. A seal that is
gone leaves a checkpoint that nothing speaks for but itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sdc_guard.archive.manifest import FILE
from sdc_guard.archive.save import LATEST
from sdc_guard.archive.sealing.listed import listed_in
from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.shown import shown

from .checkpoint import Checkpoint
from .locations import is_local
from .readers.guard_archive import FORMAT

_LONGEST: Final = 80  # characters of what LATEST says
_NAMED: Final = 2


def archive_remarks(path: Path, found: Sequence[Checkpoint]) -> list[str]:
    """Remarks on a run's folder, or on its archive; [] of anything else.

    Args:
        path: that was looked into.
        found: the checkpoints there.
    """
    if not is_local(path) or not path.is_dir():
        return []
    own = [one for one in found if one.format == FORMAT]
    folders = {one.path.parent for one in own} & {path, path / "archive"}
    return [line for one in folders for line in _latest(one)] + _without_seal(path)


def _latest(archive: Path) -> list[str]:
    try:
        with (archive / LATEST).open("rb") as file:
            said = file.read(4096).decode(errors="replace").strip()
    except FileNotFoundError:
        return [f"{LATEST} is missing: nothing names the newest checkpoint"]
    except OSError as error:
        return [f"{LATEST} cannot be read ({error.strerror})"]
    named = archive / said if said.startswith("step=") and "/" not in said else None
    try:
        if named is not None and (named / FILE).is_file():
            return []
    except (OSError, ValueError):  # a name that none can be
        pass
    text = shown(said[:_LONGEST])
    return [f'{LATEST} is damaged: it says "{text}", and no checkpoint there is called so']


def _without_seal(run: Path) -> list[str]:
    """Checkpoints that the run's guard sealed and whose seals are gone, in a line."""
    lost = [one for one in listed_in(run) if one.path.exists() and not seal_of(one.path).exists()]
    if not lost:
        return []
    names = ", ".join(shown(one.path.name) for one in lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    many = "the seals of" if len(lost) > 1 else "the seal of"
    verb = "are" if len(lost) > 1 else "is"
    return [f"{many} {names}{more} {verb} gone: what was sealed cannot be compared any more"]
