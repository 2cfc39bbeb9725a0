"""A folder that appears under its name when it is whole, and never takes another one's place."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ...errors import UsageError
from ...store.atomic import fsync_folder
from ..save import ABANDONED_SECONDS

_NEXT: Final = "name a new folder, or move that one away"
_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def check_free(to: Path) -> None:
    """Make sure that nothing is at a path, an empty folder aside.

    Raises:
        UsageError: something is, or its parent is no folder.
    """
    if to.is_symlink() or (to.exists() and not (to.is_dir() and not any(to.iterdir()))):
        raise UsageError("there is something already", where=str(to), next_step=_NEXT)


@contextlib.contextmanager
def new_folder(to: Path) -> Iterator[Callable[[], Path]]:
    """Yields what makes an empty folder to fill; at the end the last one gets the name `to`.

    It lies beside, under a name that starts with a dot. Whatever happens before the end leaves
    nothing at `to`, and an error nothing at all. Files in it have to be synced by who writes them.
    What killed processes left of the same name is deleted when nothing in it has changed for an
    hour.

    Raises:
        UsageError: the name is taken.
        OSError: as the file system gave it.
    """
    check_free(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(to)
    made: list[Path] = []

    def make() -> Path:
        _delete(made)
        made.append(to.with_name(f".{to.name}.{secrets.token_hex(6)}.partial"))
        made[-1].mkdir()
        return made[-1]

    try:
        yield make
        (filled,) = made
        for folder in (*(path for path in filled.rglob("*") if path.is_dir()), filled):
            fsync_folder(folder)
        check_free(to)
        try:
            filled.rename(to)  # fails where a folder that is not empty is, or a file
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise UsageError("there is something already", where=str(to), next_step=_NEXT) from None
        fsync_folder(to.parent)
    except BaseException:
        _delete(made)
        raise


def _delete(made: list[Path]) -> None:
    while made:
        shutil.rmtree(made.pop(), ignore_errors=True)


def _delete_abandoned(to: Path) -> None:
    for left in to.parent.glob(f".{_escaped(to.name)}.*.partial"):
        with contextlib.suppress(OSError):
            changed = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if time.time() - changed > ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
