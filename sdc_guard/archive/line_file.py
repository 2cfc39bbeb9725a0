"""Files of a JSON object per line, appended to by several processes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_log = logging.getLogger("sdc_guard")
Line = TypeVar("Line")


def read_lines(path: Path, parse: Callable[[Any], Line]) -> list[Line]:
    """What the lines of a file say, oldest first; damaged lines are passed over aloud.

    Args:
        path: of the file; none there is no line.
        parse: makes a line's object what it stands for, or raises.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.warning("SDC Guard: %s cannot be read: %s", path, error.strerror)
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            _log.warning("SDC Guard: %s: line %d is damaged, passed over", path, number)
    return found
