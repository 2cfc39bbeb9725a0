"""What lies where, as far as that can be told: a folder that cannot be looked into is empty."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def names_in(folder: Path) -> set[str]:
    """The names of files and folders in a folder; none if it cannot be listed.

    Not those of pipes and the like: opening one would wait.
    """
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if _is_usual(entry)}
    except OSError:
        return set()


def _is_usual(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, a folder, or a link that leads to none of the other kinds."""
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return True
    if not entry.is_symlink():
        return False
    try:
        mode = entry.stat().st_mode
    except OSError:  # it leads to nothing, or to where nobody may look
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


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
