"""seals.jsonl: the checkpoints that other programs wrote and that a run's guard sealed.

They may lie anywhere, so the run says where: one JSON object a line, appended. A path is relative
to the run's folder, so that both may be moved together.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger("sdc_guard")

FILE: Final = "seals.jsonl"


@dataclass(frozen=True)
class Listed:
    """A checkpoint that was sealed.

    Attributes:
        path: its own, absolute.
        step, attempt: of it.
    """

    path: Path
    step: int
    attempt: int


def list_sealed(run: Path, one: Listed) -> None:
    """Append a checkpoint to the list of a run.

    Raises:
        OSError: the run cannot be written.
    """
    archive = run / "archive"
    archive.mkdir(parents=True, exist_ok=True)
    row = {"path": os.path.relpath(one.path, run), "step": one.step, "attempt": one.attempt}
    with (archive / FILE).open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        torn = b"" if not end or file.read(1) == b"\n" else b"\n"
        file.write(torn + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def listed_in(run: Path) -> list[Listed]:
    """Those of a run, each path once as it was listed last; damaged lines are passed over aloud."""
    place = run / "archive" / FILE
    try:
        lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.warning("SDC Guard: %s cannot be read: %s", place, error.strerror)
        return []
    found: dict[Path, Listed] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            one = _parsed(json.loads(line), run)
        except (ValueError, KeyError, TypeError, RecursionError):
            _log.warning("SDC Guard: %s: line %d is damaged, passed over", place, number)
            continue
        found.pop(one.path, None)
        found[one.path] = one
    return sorted(found.values(), key=lambda one: (one.step, one.attempt))


def _parsed(row: dict[str, Any], run: Path) -> Listed:
    path, numbers = row["path"], (row["step"], row["attempt"])
    if not isinstance(path, str) or not all(type(number) is int for number in numbers):
        raise TypeError("no path, or no number")
    return Listed(Path(os.path.normpath(run.absolute() / path)), *numbers)
