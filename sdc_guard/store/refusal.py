"""Why DuckDB does not open or read a file, in a line."""

from __future__ import annotations

import re
from typing import Final

import duckdb

# F_GETLK (fcntl(2)) says 0 of a process that has no number here, and -1 of an open file's lock.
_UNSEEN: Final = re.compile(r"lock is held in PID (?:0|-1)\b")


def reason(error: duckdb.Error) -> str:
    """DuckDB's first line; where a process that is not seen from here holds the file, what to do.

    "PID 0" is a process of another container, or on another machine that shares the file system.
    """
    line = str(error).splitlines()[0]
    if not _UNSEEN.search(line):
        return line
    return (
        f"{line.partition('. See also')[0]}, a process of another container or machine: stop it, "
        "or read a copy of the run on a local disk"
    )
