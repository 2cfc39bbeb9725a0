"""A bisect session's folder: a journal that is only appended to, and the result."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdc_guard.store.atomic import publish_text


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
        parent = run / "bisect"
        parent.mkdir(exist_ok=True)
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
        return [cls(folder) for folder in sorted(_numbered(run / "bisect"))]

    def note(self, event: str, **content: Any) -> None:
        """Append one line to the journal and make it survive a crash."""
        line = json.dumps({"event": event, **content})
        with (self.folder / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, result: dict[str, Any], at: float | None = None) -> None:
        """Publish the result, as finished `at` (seconds since the epoch, by default now)."""
        content = {**result, "finished": time.time() if at is None else at}
        publish_text(self.folder / "result.json", json.dumps(content, indent=1) + "\n")

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
