"""What an upload tells its user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .uploader import Progress


class Telling:
    """Lines about uploads; each damaged file is told once.

    Args:
        say: takes a line of progress.
        trouble: takes a line about something that went wrong.
    """

    def __init__(self, say: Callable[[str], object], trouble: Callable[[str], object]) -> None:
        self._say = say
        self._trouble = trouble
        self._told: set[Path] = set()

    def done(self, progress: Progress, *, always: bool = False) -> None:
        """Tell of an upload; of one that found nothing new only if `always`."""
        for path, reason in progress.damaged.items():
            if path not in self._told:
                self._told.add(path)
                self._trouble(f"damaged, not uploaded: {path} ({reason})")
        if progress.commits or always:
            self._say(
                f"{progress.run}: {progress.rows:,} rows of {progress.pieces:,} segments"
                f" in {progress.commits:,} commits"
            )

    def trouble(self, line: str) -> None:
        """Tell of what went wrong."""
        self._trouble(line)
