"""Deleting checkpoints, one at a time, each by the state of that moment."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...errors import CheckpointUnreadable
from ...store.atomic import fsync_folder
from .inventory import identity_of
from .lock import alone
from .plan import Plan
from .stored import Stored

SUFFIX: Final = ".deleted"
SEAL: Final = ".sdc-seal.json"  # that `sdc-bisect seal` may have written beside a checkpoint


def delete_planned(
    archive: Path, planned: Plan, again: Callable[[], Plan], tell: Callable[[Stored], None]
) -> Plan:
    """Delete what a plan says, as long as a new one still says so.

    Before each deletion the state is read anew under the archive's lock, so that a pin, an alert, a
    search or a checkpoint of this moment counts. A folder is renamed first, so that a process
    that is killed on the way leaves nothing that looks like a checkpoint.

    Args:
        archive: the archive's folder.
        planned: nothing goes that is not in it.
        again: reads the state and makes a new plan.
        tell: called with each that is gone.

    Returns:
        the plan of what is left.

    Raises:
        SdcGuardError: the lock is held for long, or the state cannot be read.
        OSError: a folder cannot be renamed.
    """
    wanted = set(planned.goes)
    while True:
        with alone(archive):
            now = again()
            due = [name for name in now.goes if name in wanted]
            if not due:
                return now
            wanted.remove(due[0])
            stored = next(row.stored for row in now.rows if row.stored.name == due[0])
            hidden = renamed(archive, stored)
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)  # what stays is removed another time
            tell(stored)


def renamed(archive: Path, stored: Stored) -> Path | None:
    """Take a checkpoint's name away; None if it is another one by now."""
    folder = archive / stored.name
    with contextlib.suppress(CheckpointUnreadable, FileNotFoundError):
        if identity_of(folder) == stored.identity:
            # a checkpoint that is saved under this name later must not be held against it
            (archive / f"{stored.name}{SEAL}").unlink(missing_ok=True)
            hidden = archive / f".{stored.name}.{secrets.token_hex(6)}{SUFFIX}"
            folder.rename(hidden)
            fsync_folder(archive)
            return hidden
    return None
