"""Searches for the first corrupt checkpoint: what they are about, or have found, stays.

Read is as little of a session's journal as is needed, and whatever is not certain is taken for
"about everything".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from .stored import Span

OPEN: Final = "open"
JOURNAL: Final = "journal.jsonl"
RESULT: Final = "result.json"
RECENT: Final = 86400.0  # seconds; a search that is silent for longer is not going on
FOLLOWED_UP: Final = 30 * 86400.0  # seconds in which the answer of a search may be replayed
_LONGEST: Final = 1 << 20  # bytes of a journal's line
_ALL: Final = (-(2**63), 2**63 - 1)
_PLAIN: Final = {"start", "probe", "skip", "touched", "stopped"}


def open_searches(folders: Iterable[Path], now: float) -> tuple[Span, ...]:
    """The steps that searches are about, or found, which lie in these folders of sessions.

    Args:
        folders: each with numbered sessions and a mark `open`; they need not be there.
        now: seconds since the epoch.

    Raises:
        OSError: a folder cannot be read.
    """
    return tuple(span for folder in folders if folder.is_dir() for span in _of(folder, now))


def _of(folder: Path, now: float) -> list[Span]:
    found = []
    marked = _marked(folder / OPEN)
    if marked is not None:
        journal = folder / marked / JOURNAL
        found.append(Span(*_bracket(journal), f"the search {folder.name}/{marked} is open"))
    for session in folder.iterdir():
        if session.name == marked or not session.name.isdigit():
            continue
        name = f"{folder.name}/{session.name}"
        if (session / RESULT).exists():
            found += [Span(*one, f"the answer of {name}") for one in _answer(session, now)]
        elif _goes_on(session / JOURNAL, now):
            found.append(Span(*_ALL, f"{name} has no answer yet"))
    return found


def _answer(session: Path, now: float) -> list[tuple[int, int]]:
    """The bracket that a search found lately: it is what would be replayed."""
    try:
        if now - (session / RESULT).stat().st_mtime >= FOLLOWED_UP:
            return []
        content = json.loads((session / RESULT).read_text(encoding="utf-8"))
        if content["command"] != "run" or content["first_corrupt"] is None:
            return []  # of a replay the step is known, and convictions.jsonl says it
        last_clean = content["last_clean"]
        return [(_ALL[0] if last_clean is None else int(last_clean), int(content["first_corrupt"]))]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return [_ALL]


def _goes_on(journal: Path, now: float) -> bool:
    """Whether a session that is not marked may be a replay at work; a search would be marked."""
    try:
        if now - journal.stat().st_mtime >= RECENT:
            return False
        with journal.open("rb") as file:
            first = json.loads(file.readline(_LONGEST))
        return bool(first["event"] != "start")
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError, RecursionError):
        return True


def _marked(mark: Path) -> str | None:
    try:
        name = mark.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    return name if name.isdigit() else "?"  # of which there is no journal


def _bracket(journal: Path) -> tuple[int, int]:
    """From the last clean one to the first corrupt one, or everything."""
    try:
        events = [json.loads(line) for line in journal.read_bytes().splitlines() if line.strip()]
        return _between(events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _ALL


def _between(events: list[Mapping[str, Any]]) -> tuple[int, int]:
    asked = events[0]["asked"] if events else {}
    odd = any(asked.get(key) for key in ("first_good", "noise", "scan"))
    odd = odd or asked.get("repeat", 1) != 1
    if odd or not {event["event"] for event in events} <= _PLAIN:
        return _ALL
    said = {e["checkpoint"]: (int(e["step"]), e["verdict"]) for e in events if "verdict" in e}
    corrupt = [step for step, verdict in said.values() if verdict == "corrupt"]
    clean = [step for step, verdict in said.values() if verdict == "clean"]
    first, last = max(clean, default=_ALL[0]), min(corrupt, default=_ALL[1])
    return (first, last) if first < last else _ALL
