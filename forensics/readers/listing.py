"""What lies where, as far as that can be told: a folder that cannot be looked into is empty."""

from __future__ import annotations

import os
from pathlib import Path


def names_in(folder: Path) -> set[str]:
    """The names in a folder; none if it cannot be listed."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - the names alone, of a thousand folders
    except OSError:
        return set()


def is_file(path: Path) -> bool:
    """Whether a path is a file; no also where nobody may look, or no file can have that name."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False
