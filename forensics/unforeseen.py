"""An error that nobody foresaw, in words that can be reported."""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import Final

from sdc_guard.archive.read_trouble import trouble

_MOST: Final = 120  # characters of its own text


def unforeseen(error: Exception, doing: str) -> str:
    """What failed: by the machine's trouble, or by a fault of the program, and where that is.

    Args:
        doing: what was done to the checkpoint: "reading", "judging".
    """
    if why := trouble(error):
        return f"unreadable: {why}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    said = " ".join(str(error).split())[:_MOST]
    named = f"{type(error).__name__}{place}" + (f": {said}" if said else "")
    return f"unreadable: {doing} it failed ({named}; a fault of sdc-bisect, please report it)"
