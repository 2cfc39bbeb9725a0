"""Opening files for reading, and nothing else: a named pipe that nobody writes to blocks for ever.

That a path is a file may be no longer so when it is opened, and many names are opened unseen.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final

_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0)  # of no effect on files


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; a path that is none of this machine opens itself.

    Raises:
        OSError: it cannot be opened, or is a pipe, a socket, a device or a folder.
    """
    return BufferedReader(_raw(path)) if isinstance(path, Path) else path.open("rb")


def open_unbuffered(path: Path) -> FileIO:
    """Likewise, without a buffer.

    Raises: as `open_regular`.
    """
    return _raw(path) if isinstance(path, Path) else path.open("rb", buffering=0)


def read_regular(path: Path) -> bytes:
    """All bytes of a file.

    Raises: as `open_regular`.
    """
    with open_regular(path) as file:
        return file.read()


def _raw(path: Path) -> FileIO:
    file = FileIO(path, opener=_open)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(path))
    return file


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE)
