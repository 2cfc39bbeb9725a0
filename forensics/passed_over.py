"""What lies beside the checkpoints and cannot be one: told in one line, and never opened.

Opening a pipe would wait for somebody to write into it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sdc_guard.shown import shown

from .checkpoint import Checkpoint
from .locations import is_local

_FILES: Final = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors", ".distcp")
_NAMED: Final = 2  # of each kind
_SPECIAL: Final = (
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "device"),
    (stat.S_ISCHR, "device"),
)
_DANGLING: Final = "link to nothing"
_EMPTY: Final = "empty folder"
_LIKE_A_FILE: Final = "folder named like a file"
_CLOSED: Final = "without permission to read"
_PLURAL: Final = {
    "pipe": "pipes", "socket": "sockets", "device": "devices", _DANGLING: "links to nothing",
    _EMPTY: "empty folders", _LIKE_A_FILE: "folders named like a file",
}  # fmt: skip


def passed_over(path: Path, found: Sequence[Checkpoint]) -> list[str]:
    """A remark on what was passed over in a folder, with the number of each kind; [] if nothing.

    Pipes, sockets, devices, links to nothing, empty folders, folders that are named like a file of
    a checkpoint, and what may not be read. Names that begin with a dot are no subject.

    Args:
        path: that was looked into; of a run's folder its archive is, too.
        found: the checkpoints there.
    """
    taken = {place for one in found for place in (one.path, *one.path.parents)}
    if not is_local(path) or any(one.path == path for one in found):
        return []
    kinds: dict[str, list[str]] = {}
    for folder in (path, path / "archive"):
        for entry, kind in _others(folder, taken):
            kinds.setdefault(kind, []).append(entry)
    return [f"passed over: {', '.join(map(_counted, kinds.items()))}"] if kinds else []


def what_is(path: Path) -> str:
    """What a path is where it cannot be a checkpoint, as "a pipe"; "" where it can be."""
    kind = _kind(path) if is_local(path) else ""
    if not kind or kind == _CLOSED:
        return ""
    return f"{'an' if kind == _EMPTY else 'a'} {kind}"


def _others(folder: Path, taken: set[Path]) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - the names alone
    except OSError:
        return
    for name in names:
        if name.startswith(".") or folder / name in taken:
            continue
        if kind := _kind(folder / name):
            yield name, kind


def _kind(path: Path) -> str:
    """Why a path is passed over; "" if for no reason of this page."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return _DANGLING if path.is_symlink() else ""
    except (OSError, ValueError):  # a link that leads to itself, say
        return ""
    for test, kind in _SPECIAL:
        if test(mode):
            return kind
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        return _CLOSED
    if not stat.S_ISDIR(mode):
        return ""
    if path.suffix in _FILES:
        return _LIKE_A_FILE
    with os.scandir(path) as entries:
        return "" if next(entries, None) else _EMPTY


def _counted(kind: tuple[str, list[str]]) -> str:
    """A kind, how many there are of it, and the first names."""
    what, names = kind
    more = f", {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    many = _PLURAL.get(what, what) if len(names) > 1 else what
    return f"{len(names)} {many} ({', '.join(map(shown, names[:_NAMED]))}{more})"
