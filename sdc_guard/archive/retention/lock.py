"""One process at a time changes what an archive keeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...errors import UsageError
from ...store.atomic import exclusive

NAME: Final = ".keeping"
_SECONDS: Final = 30.0


@contextlib.contextmanager
def alone(archive: Path, seconds: float = _SECONDS) -> Iterator[None]:
    """Hold the archive's lock, which a process that ends lets go in any case.

    Args:
        archive: the archive's folder.
        seconds: to wait for another process at most; it holds the lock for one deletion.

    Raises:
        UsageError: another process held it all the time.
        OSError: the folder cannot be written.
    """
    until = time.monotonic() + seconds
    while True:
        with exclusive(archive / NAME) as free:
            if free:
                yield
                return
        if time.monotonic() > until:
            raise UsageError(
                "another process is deleting there",
                where=str(archive / NAME),
                next_step="try again when it is done",
            )
        time.sleep(0.02)
