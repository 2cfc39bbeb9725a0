"""Reading a file of which anything may be wrong: a pipe, a link to nothing, one without an end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, *, most: int, write: bool = False) -> BinaryIO:
    """Open a file that is there, is a file, and is of no more than `most` bytes.

    Raises:
        FileNotFoundError: it is gone.
        OSError: a link to nothing, no regular file, too large, or as the file system gave it.
    """
    # not to wait for the other end of a pipe
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "a link to nothing", str(path)) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"{found.st_size:,} bytes are too many", str(path))
        return os.fdopen(descriptor, "rb+" if write else "rb")
    except BaseException:
        os.close(descriptor)
        raise
