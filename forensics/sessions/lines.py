"""The text of a journal: a JSON object per line, appended to by processes that may be killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_SHOWN = 60  # characters of a damaged line in a message


class Unreadable(ValueError):
    """What of a journal or log cannot be read, in words for its reader."""


def why(error: Exception) -> str:
    """Why an event says nothing, in words; those of Python tell its reader nothing."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return "its entries are not those of a session"


@dataclass(frozen=True)
class JournalLines:
    """What a journal holds.

    Attributes:
        events: of the lines that can be read, in their order.
        numbers: the line number of each, from 1.
        sound: bytes up to the end of the last line that can be read, its line break left out.
        torn: the beginning of the last line, if it cannot be read: its writer was killed.
        damaged: numbers of other lines that cannot be read.
    """

    events: tuple[dict[str, Any], ...]
    numbers: tuple[int, ...]
    sound: int
    torn: str | None
    damaged: tuple[int, ...]


def parse(content: bytes) -> JournalLines:
    """Read a journal. A last line that was cut short is told apart from damage before it."""
    events, numbers, broken = [], [], []
    sound = start = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        end = start + len(line)
        if line.strip():
            event = _event(line)
            if event is None:
                broken.append((number, line))
            else:
                events.append(event)
                numbers.append(number)
                sound = end
        start = end + 1
    last = numbers[-1] if numbers else 0
    torn = [line for number, line in broken if number > last]
    # several lines after the last sound one are no single torn write
    is_torn = len(torn) == 1
    damaged = tuple(n for n, _ in broken if n < last or not is_torn)
    return JournalLines(
        tuple(events), tuple(numbers), sound, _shown(torn[0]) if is_torn else None, damaged
    )


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("event"), str) else None


def _shown(line: bytes) -> str:
    """ASCII, so that no control character reaches a terminal."""
    return ascii(line.decode("utf-8", errors="replace")[:_SHOWN])
