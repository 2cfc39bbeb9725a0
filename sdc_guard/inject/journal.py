"""inject/journal.jsonl: what was to be injected into a run, and what was, a line each.

Every rank but the first writes a file of its own, so that no two processes append to one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final

from ..errors import InjectionError
from .fault import InjectionRecord, Touched

# of what is told to the user when a command has ended
_SAID: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "missed": (("fault", int), ("site", str), ("rank", int), ("reason", str)),
    "fired": (("step", int), ("site", str), ("rank", int), ("tensor", str)),
    "firing": (("step", int),),
}
JOURNAL = Path("inject") / "journal.jsonl"


def journal_of(run: Path, rank: int = 0) -> Path:
    """The file of a rank."""
    return run / JOURNAL if rank == 0 else run / JOURNAL.with_name(f"journal-{rank:05d}.jsonl")


class Journal:
    """What one rank injects into a run.

    Each line is one JSON object with `event`: "planned" (a fault, and how what it leaves open is
    drawn), "firing" (it is injected now), "fired" (an InjectionRecord, once its words were read
    from the device), "missed" (why a fault that was due did not fire) or "refused" (why a plan was
    not taken). It is with the system when the method returns, so it
    survives a killed process.

    Args:
        run: the run's folder; None keeps nothing.
        rank: whose file.

    Raises:
        InjectionError: a line is damaged.
    """

    def __init__(self, run: Path | None, rank: int) -> None:
        self.path = None if run is None else journal_of(run, rank)
        lines = [] if self.path is None else list(_lines(self.path))
        self._fired = {
            (line.get("key"), line["step"]) for line in lines if _event(line) in ("firing", "fired")
        }

    def fired_before(self, key: str, step: int) -> bool:
        """Whether an earlier process fired this fault at this step."""
        return (key, step) in self._fired

    def fired(self, key: str, record: InjectionRecord) -> None:
        """Note what was injected."""
        self.note("fired", key=key, **asdict(record))

    def note(self, event: str, **content: Any) -> None:
        """Append a line."""
        if self.path is not None:
            _append(self.path, {"event": event, **content})


def append_journal(run: Path, record: InjectionRecord) -> None:
    """Add an injection that no plan tells of to the journal of a run."""
    _append(journal_of(run, record.rank), {"event": "fired", **asdict(record)})


def _append(path: Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.truncate(_whole_lines(file))
        file.write(json.dumps(line).encode() + b"\n")


def _whole_lines(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line: a killed process may have left a part of one."""
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def read_journal(run: Path) -> list[InjectionRecord]:
    """The injections that a run's folder records, rank by rank in order; empty without any.

    A line that a killed process left unfinished is passed over: its fault died with the process.

    Raises:
        InjectionError: a line is damaged.
    """
    return [_record(line) for line in read_events(run) if _event(line) == "fired"]


def read_events(run: Path) -> list[dict[str, Any]]:
    """All lines of a run's journals, rank by rank; see `Journal` for what they are.

    Raises:
        InjectionError: a line is damaged.
    """
    first = run / JOURNAL
    others = sorted(first.parent.glob("journal-*.jsonl"))
    return [line for path in (first, *others) for line in _lines(path)]


def events_of(path: Path, *, since: int = 0) -> list[dict[str, Any]]:
    """The lines of one journal, from a byte on where one begins.

    Raises:
        InjectionError: a line is damaged.
    """
    return list(_lines(path, since))


def _lines(path: Path, since: int = 0) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    # without what follows the last newline: a killed process did not finish it
    for number, line in enumerate(path.read_bytes()[since:].split(b"\n")[:-1], 1):
        try:
            found = json.loads(line)
            _check(found)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InjectionError(
                f"line {number} of the injection journal cannot be read",
                where=str(path),
                next_step="remove the line, or use a new run folder",
            ) from None
        yield found


def _check(line: Any) -> None:
    """Refuse, by whatever error, what no injector writes."""
    if not isinstance(line, dict):
        raise TypeError("no object")
    event = _event(line)
    if event == "fired":
        _record(line)
    if event in ("fired", "firing"):
        hash((line.get("key"), line["step"]))
    wanted = _SAID.get(event, ())
    if not all(isinstance(line[name], kind) for name, kind in wanted):
        raise TypeError("of another type")


def _event(line: dict[str, Any]) -> str:
    return str(line.get("event", "fired"))


def _record(line: dict[str, Any]) -> InjectionRecord:
    content = {name: value for name, value in line.items() if name not in ("event", "key")}
    touched = tuple(Touched(**word) for word in content.pop("touched"))
    if not all(isinstance(x, int) for word in touched for x in (word.before, word.after)):
        raise TypeError("no bits")
    return InjectionRecord(**content, touched=touched)
