"""Uploading again and again, while the run goes on and also while the catalog does not."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import LakeUnavailable, RunNotFound
from .uploader import Progress, Uploader

_LONGEST_PAUSE = 60.0  # seconds


def watch(
    uploader: Uploader,
    every: float,
    tell: Callable[[Progress], None],
    trouble: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Upload, wait, upload; ends by an exception alone.

    A run that is not there yet and a lake that fails are told once and tried again, a lake after
    pauses that grow up to a minute.

    Args:
        uploader: of the run.
        every: seconds between two uploads.
        tell: called after each upload.
        trouble: called with one line when something fails that did not fail before.
        pause: waits a number of seconds.

    Raises:
        RunFormatError, UsageError: as `Uploader.upload`.
    """
    told = ""
    wait = every
    while True:
        try:
            tell(uploader.upload())
            told, wait = "", every
        except RunNotFound as error:
            line = f"{error}; waiting for it"
        except LakeUnavailable as error:
            line = f"{error}; trying again"
            wait = min(_LONGEST_PAUSE, max(2 * wait, 1.0))
        else:
            line = ""
        if line and line != told:
            trouble(line)
            told = line
        pause(wait)
