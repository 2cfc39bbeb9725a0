"""Telling a read that failed from bytes that are damaged: only the latter is evidence."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from ..errors import CheckpointUnreadable, ReadFailed, SdcGuardError

# what damaged numbers in a file lead to: places before its beginning, or past any end
_BY_CONTENT: Final = (None, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW)
NEXT_STEP: Final = "its bytes are not judged; mend the cause, then run it again"


def trouble(error: BaseException) -> str:
    """Why reading failed for a cause that is not in the bytes; "" where they may be the cause.

    A device or a network that fails (EIO, ESTALE, …), missing permission, too little memory, a
    package that is not there.
    """
    if isinstance(error, ReadFailed):
        return error.what
    if isinstance(error, MemoryError):
        return "cannot be read: not enough memory on this machine"
    if isinstance(error, ImportError):
        return f"cannot be read: a package is missing ({error})"
    if isinstance(error, OSError) and error.errno not in _BY_CONTENT:
        return f"cannot be read: {error.strerror or type(error).__name__}"
    return ""


def raise_trouble(error: BaseException, where: Path, what: str = "") -> None:
    """Raise what is no evidence about the bytes; return where they may be the cause.

    Args:
        error: that reading raised.
        where: the file.
        what: part of it that was read.

    Raises:
        ReadFailed: by a cause that `trouble` knows.
        SdcGuardError: `error`, where it is one that is not about a checkpoint.
    """
    if isinstance(error, ReadFailed):
        raise error
    if isinstance(error, SdcGuardError) and not isinstance(error, CheckpointUnreadable):
        raise error
    if why := trouble(error):
        text = f"{what} {why}" if what else why
        raise ReadFailed(text, where=str(where), next_step=NEXT_STEP) from error
