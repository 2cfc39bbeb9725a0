"""Publishing a file so that a reader sees all of it or nothing, also after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM}


def fsync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, where the file system can promise it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:  # some network file systems refuse it for folders
            raise
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of `path` survive a power cut."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def publish(target: Path, write: Callable[[Path], object], *, replace: bool = True) -> None:
    """Call `write` with a temporary path beside `target`, sync it, rename it into place.

    A leftover of a killed writer has a name that starts with a dot, which no reader lists.

    Args:
        target: the final name.
        write: writes the whole content to the path that it is given.
        replace: False refuses to take the place of a file that is there.

    Raises:
        FileExistsError: the target is there and `replace` is False.
        OSError: as the file system gave it (disk full, read-only); nothing is left behind.
    """
    # not the process id: containers that share a file system share their numbers too
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        write(temporary)
        fsync_file(temporary)
        if replace:
            temporary.replace(target)
        else:
            _rename_to_free_name(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(target.parent)


def _rename_to_free_name(temporary: Path, target: Path) -> None:
    # a link fails where the name is taken; a rename would silently replace the other's file
    try:
        target.hardlink_to(temporary)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, "there already", str(target)) from None
        temporary.replace(target)
    else:
        temporary.unlink()


def publish_text(target: Path, text: str) -> None:
    """Publish a small text file."""
    publish(target, lambda path: path.write_text(text, encoding="utf-8"))


def publish_text_once(target: Path, text: str) -> None:
    """Publish a small text file, if there is none of that name.

    Raises:
        FileExistsError: there is one.
    """
    publish(target, lambda path: path.write_text(text, encoding="utf-8"), replace=False)


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
