"""A folder that appears under its name when it is whole, and never takes another one's place."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import xxhash

from ...errors import UsageError
from ...store.atomic import fsync_folder
from ..save import ABANDONED_SECONDS

_NEXT: Final = "name a new folder, or move that one away"
_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_LONGEST: Final = 200  # bytes of a name, so that a hidden one has room for its own part below 255
_ROOM: Final = "make room, or name a folder on another disk"
_WRITABLE: Final = "name a folder in one that may be written"
_REMEDIES: Final = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "lift the limit on files (ulimit -f), or name a folder on another file system",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ENOTDIR: "what is above it is a file: name a folder elsewhere",
    errno.EEXIST: "what is above it is a file: name a folder elsewhere",
}


def check_free(to: Path) -> None:
    """Make sure that nothing is at a path, an empty folder aside.

    Raises:
        UsageError: something is, or it is a folder whose place no other can take: one that a disk
            is mounted on, or this process's own.
    """
    if to.is_dir() and (os.path.ismount(to) or to.samefile(os.curdir)):
        what = "a disk is mounted there" if os.path.ismount(to) else "that is the folder one is in"
        raise UsageError(what, where=str(to), next_step="name a new folder in it")
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
        made.append(to.with_name(f"{_hidden(to)}{secrets.token_hex(6)}.partial"))
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


def unwritten(to: Path, error: OSError) -> UsageError | None:
    """That a folder cannot be written, and what to do; None for an error of another file."""
    if error.filename is not None:
        named, place = Path(os.fsdecode(error.filename)).absolute(), to.absolute()
        hidden = str(place.with_name(_hidden(to)))
        if not place.is_relative_to(named) and not str(named).startswith(hidden):
            return None
    why = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "name another folder")
    return UsageError(f"it cannot be written: {why}", where=str(to), next_step=remedy)


def _hidden(to: Path) -> str:
    """How the names begin under which it is filled."""
    name = os.fsencode(to.name)
    return f".{to.name if len(name) <= _LONGEST else xxhash.xxh3_128_hexdigest(name)}."


def _delete(made: list[Path]) -> None:
    while made:
        shutil.rmtree(made.pop(), ignore_errors=True)


def _delete_abandoned(to: Path) -> None:
    for left in to.parent.glob(f"{_escaped(_hidden(to))}*.partial"):
        with contextlib.suppress(OSError):
            changed = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if time.time() - changed > ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
