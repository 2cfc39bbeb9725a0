"""Where a campaign keeps what it needs only while it runs: in memory where there is enough of it.

One place per results file. A process that was killed leaves it behind, and the next one on the
same file removes it; the lock on the results file sees to it that there is only one at a time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..errors import UsageError

_MEMORY: Final = Path("/dev/shm")
_ENOUGH: Final = 2 << 30  # bytes; twins take up to a third of it


@contextmanager
def workspace(results: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards.

    Args:
        results: the campaign's file, which the caller holds open.

    Raises:
        UsageError: somebody else's folder is in the way.
    """
    name = hashlib.blake2b(str(results.absolute()).encode(), digest_size=8).hexdigest()
    folder = _parent() / f"sdc-guard-campaign-{os.getuid()}-{name}"
    _remove(folder)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    try:
        if shutil.disk_usage(_MEMORY).free >= _ENOUGH:
            return _MEMORY
    except OSError:
        pass  # no such file system here
    return Path(tempfile.gettempdir())


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() or folder.is_symlink():
        raise UsageError(
            "a folder of an earlier campaign cannot be removed",
            where=str(folder),
            next_step="remove it, or set TMPDIR",
        )
