"""Publishing a file so that a reader sees all of it or nothing, also after a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def fsync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of `path` survive a power cut."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def publish(target: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `target`, sync it, rename it into place.

    A leftover of a killed writer has a name that starts with a dot, which no reader lists.

    Raises:
        OSError: as the file system gave it (disk full, read-only); nothing is left behind.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        fsync_file(temporary)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(target.parent)


def publish_text(target: Path, text: str) -> None:
    """Publish a small text file."""
    publish(target, lambda path: path.write_text(text, encoding="utf-8"))


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[bool]:
    """Hold an advisory lock file; yields False at once when another process holds it."""
    import fcntl

    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
