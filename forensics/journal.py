"""A bisect session's folder: a journal that is only appended to, and the result."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sdc_guard.store.atomic import fsync_folder, publish_text

from .checkpoint import Checkpoint
from .oracles.judgement import Judgement

OF_RUNS: Final = "bisect"  # the sessions' folder in that of a guarded run
FILE: Final = "journal.jsonl"


class Recorder(Protocol):
    """What keeps a search's judgings."""

    @property
    def folder(self) -> Path:
        """Where."""
        ...

    def judging(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is about to be judged."""
        ...

    def judged(self, checkpoint: Checkpoint, judgement: Judgement, seconds: float) -> None:
        """It was, and that took so many seconds."""
        ...

    def stopped(self, reason: str) -> None:
        """The search ended before its answer."""
        ...


@dataclass(frozen=True)
class Session:
    """One search or verification: RUN/bisect/<number>/."""

    folder: Path

    @classmethod
    def new(cls, run: Path) -> Session:
        """Make the next session's folder.

        Raises:
            OSError: the run's folder cannot be written.
        """
        parent = run / OF_RUNS
        parent.mkdir(exist_ok=True)
        return cls.under(parent)

    @classmethod
    def under(cls, parent: Path) -> Session:
        """Make the next numbered folder there.

        Raises:
            OSError: the folder cannot be written.
        """
        number = max((int(path.name) for path in _numbered(parent)), default=0)
        while True:
            number += 1
            folder = parent / f"{number:04d}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue  # another session took the number
            return cls(folder)

    @classmethod
    def all(cls, run: Path) -> list[Session]:
        """Every session of a run, oldest first."""
        return cls.in_folder(run / OF_RUNS)

    @classmethod
    def in_folder(cls, parent: Path) -> list[Session]:
        """Every session in a folder of sessions, oldest first."""
        return [cls(folder) for folder in sorted(_numbered(parent))]

    def note(self, event: str, **content: Any) -> None:
        """Append one line to the journal and make it survive a crash."""
        line = json.dumps({"event": event, **content}) + "\n"
        path = self.journal
        new = not path.exists()
        with path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            fsync_folder(self.folder)

    @property
    def journal(self) -> Path:
        """A JSON object per line."""
        return self.folder / FILE

    def judging(self, checkpoint: Checkpoint) -> None:
        """Nothing is kept of it."""

    def judged(self, checkpoint: Checkpoint, judgement: Judgement, seconds: float) -> None:
        """Append a judging."""
        self.note(
            "probe",
            step=checkpoint.step,
            verdict=judgement.verdict,
            reason=judgement.reason,
            seconds=round(seconds, 3),
        )

    def stopped(self, reason: str) -> None:
        """Append why the search ended before its answer."""
        self.note("stopped", reason=reason)

    def finish(self, result: dict[str, Any], at: float | None = None) -> None:
        """Publish the result, as finished `at` (seconds since the epoch, by default now)."""
        content = {**result, "finished": time.time() if at is None else at}
        publish_text(self.folder / "result.json", json.dumps(content, indent=1) + "\n")

    def take_back(self) -> None:
        """Remove the result, if there is one: it is none any more."""
        (self.folder / "result.json").unlink(missing_ok=True)

    def result(self) -> dict[str, Any] | None:
        """The result, or None while there is none that can be read."""
        try:
            content = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def _numbered(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.name.isdigit() and path.is_dir()]
