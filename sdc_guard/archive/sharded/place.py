"""Where the files of a checkpoint are read from: its folder, or copies elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Place:
    """A checkpoint's own folder.

    Args:
        folder: of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where a file of it is read; threads may ask."""
        return self.folder / name

    def ready(self, names: Iterable[str]) -> None:
        """Be told which files are read next."""
