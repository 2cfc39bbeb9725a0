"""What may keep checkpoints in a place from being read, or their times from being right."""

from __future__ import annotations

import importlib.util
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from .checkpoint import Checkpoint
from .remote.path import RemotePath

_MOUNTS: Final = Path("/proc/mounts")
_LOCAL: Final = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "bcachefs", "vfat",
    "apfs", "ntfs", "ntfs3", "rootfs", "squashfs", "erofs",
)  # fmt: skip
_PACKAGES: Final = {"ray": "--executor ray", "fsspec": "URLs", "s3fs": "s3:// URLs"}
_SKEW: Final = 60.0  # seconds that a clock may be off without a word


def formats(found: Sequence[Checkpoint]) -> list[str]:
    """How many checkpoints of each format there are, and how many of them can be read."""
    counts = Counter(one.format for one in found)
    readable = Counter(one.format for one in found if one.readable)
    return [f"{name}: {count:,}, {readable[name]:,} readable" for name, count in counts.items()]


def missing_packages() -> list[str]:
    """Packages that are not installed, and what needs them."""
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return [f"{name} is not installed: needed for {_PACKAGES[name]}" for name in absent]


def file_system(path: Path, mounts: str | None = None) -> str:
    """The kind of the file system that a path lies on; "" where that cannot be told.

    Args:
        path: of a file or folder.
        mounts: the lines of /proc/mounts; read from there by default.
    """
    if isinstance(path, RemotePath):
        return f"{path.store.protocol} (a URL)"
    try:
        lines = (mounts if mounts is not None else _MOUNTS.read_text("utf-8")).splitlines()
    except OSError:
        return ""
    places = [parts for line in lines if len(parts := line.split(" ")) > 2]
    whole = path.resolve()
    holding = [
        (len(place), kind)
        for _, place, kind, *_ in places
        if whole.is_relative_to(place.replace("\\040", " "))
    ]
    return max(holding, default=(0, ""), key=lambda item: item[0])[1]


def is_local(kind: str) -> bool:
    """Whether a file system of that kind is this machine's own."""
    return kind in _LOCAL


def clock_troubles(found: Sequence[Checkpoint], now: float | None = None) -> list[str]:
    """What times of modification say that cannot be: steps are taken from the content for that.

    Args:
        found: by step.
        now: seconds since the epoch; the machine's clock by default.
    """
    times = [(one.step, one.path.stat().st_mtime) for one in found if one.path.exists()]
    latest = (time.time() if now is None else now) + _SKEW
    lines = []
    if future := [step for step, at in times if at > latest]:
        lines.append(f"modified in the future by this machine's clock: step {_few(future)}")
    back = [step for (_, a), (step, b) in pairwise(times) if b < a - _SKEW]
    if back:
        lines.append(f"modified before an earlier step was: step {_few(back)}; copied or restored?")
    return lines


def permission_troubles(found: Sequence[Checkpoint]) -> list[str]:
    """What of the checkpoints may not be read, and folders in which nothing can be sealed."""
    lines = []
    closed = [one.step for one in found if not all(_may_read(path) for path in _parts(one.path))]
    if closed:
        lines.append(f"may not be read: step {_few(closed)}")
    folders = dict.fromkeys(one.path.parent for one in found)
    lines += [
        f"cannot be written, so nothing in it can be sealed: {folder}"
        for folder in folders
        if not os.access(folder, os.W_OK)
    ]
    return lines


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))


def _parts(path: Path) -> Iterable[Path]:
    yield path
    if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        for item in path.iterdir():
            if stat.S_ISREG(item.lstat().st_mode):
                yield item


def _few(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:6])) + (", ..." if len(steps) > 6 else "")
