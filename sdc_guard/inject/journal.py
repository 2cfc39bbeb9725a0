"""inject/journal.jsonl: what was injected into a run, one line each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ..errors import InjectionError
from .fault import InjectionRecord, Touched

JOURNAL = Path("inject") / "journal.jsonl"


def append_journal(run: Path, record: InjectionRecord) -> None:
    """Add an injection to the journal of a run."""
    path = run / JOURNAL
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell():  # a process that was killed may have left half a line
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(asdict(record)).encode() + b"\n")


def read_journal(run: Path) -> list[InjectionRecord]:
    """The injections that a run's folder records, in order; empty when there are none.

    A line that a killed process left unfinished is passed over: its fault died with the process.

    Raises:
        InjectionError: a line is damaged.
    """
    path = run / JOURNAL
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.startswith(b"{") or not line.endswith(b"}"):
            continue
        try:
            found = json.loads(line)
            touched = tuple(Touched(**word) for word in found.pop("touched"))
            records.append(InjectionRecord(**found, touched=touched))
        except (ValueError, TypeError, KeyError):
            raise InjectionError(
                f"line {number} of the injection journal cannot be read",
                where=str(path),
                next_step="remove the line, or use a new run folder",
            ) from None
    return records
