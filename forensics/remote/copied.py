"""A copy on this machine of a checkpoint behind a URL, for as long as a command needs it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sdc_guard.errors import UsageError

from .path import RemotePath

_MOST: Final = 0.9  # of what is free: others write there, too


@contextlib.contextmanager
def on_this_machine(path: Path) -> Iterator[str]:
    """Where a checkpoint can be opened: its own path, or that of a copy in $TMPDIR, removed after.

    Raises:
        OSError: it cannot be copied.
        UsageError: there is no room for it.
        ArchiveUnreachable: the store does not answer.
    """
    if not isinstance(path, RemotePath):
        yield str(path)
        return
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    with tempfile.TemporaryDirectory(prefix="sdc-bisect-") as folder:
        _refuse_too_large(path, sum(file.stat().st_size for file in files), folder)
        for file in files:
            target = Path(folder, path.name, *file.relative_to(path).parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.copy_to(str(target))
        yield str(Path(folder, path.name))


def _refuse_too_large(path: RemotePath, size: int, folder: str) -> None:
    free = shutil.disk_usage(folder).free
    if size > _MOST * free:
        raise UsageError(
            f"no room for a copy of {size:,} bytes where {free:,} are free: {folder}",
            where=str(path),
            next_step="TMPDIR names another folder; --pass-urls gives the command the URL",
        )
