"""Which file system a path lies on, from /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        place: where it is mounted.
        kind: of the file system, `fuse.sshfs` say.
        source: a device, or a server and its folder.
        options: of the mount and of the file system.
    """

    place: Path
    kind: str
    source: str
    options: frozenset[str]


def mounts(text: str) -> list[Mount]:
    """All mounts, in the order of the file; lines that are no mount are passed over."""
    return [mount for line in text.splitlines() if (mount := _of_line(line)) is not None]


def _of_line(line: str) -> Mount | None:
    here, separator, there = line.partition(" - ")
    first, second = here.split(), there.split(" ")
    if not separator or len(first) < 6 or len(second) < 2:
        return None
    options = {*first[5].split(","), *(second[2].split(",") if len(second) > 2 else ())}
    return Mount(Path(_plain(first[4])), second[0], _plain(second[1]), frozenset(options))


def _plain(field: str) -> str:
    r"""A space is written as \040, a line break as \012."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)


def mount_of(path: Path, among: Sequence[Mount]) -> Mount | None:
    """The mount that holds a path; of several at one place the last one hides the others.

    Args:
        path: absolute and without links.
        among: in the order of the file.
    """
    holding = [mount for mount in among if path.is_relative_to(mount.place)]
    deepest = max((len(mount.place.parts) for mount in holding), default=0)
    return next((mount for mount in reversed(holding) if len(mount.place.parts) == deepest), None)


def nearest(path: Path) -> Path:
    """The path, absolute and without links, or the nearest folder above it that is there."""
    whole = path.absolute().resolve()
    return next((place for place in (whole, *whole.parents) if place.exists()), whole)
