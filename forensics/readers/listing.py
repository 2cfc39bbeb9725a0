"""What lies where, as far as that can be told: a folder that cannot be looked into is empty."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..locations import is_local


def names_in(folder: Path) -> set[str]:
    """The names of files and folders in a folder; none if it cannot be listed.

    Not those of pipes and the like: opening one would wait.
    """
    try:
        if not is_local(folder):
            return {one.name for one in folder.iterdir()}
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


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none if it cannot be listed."""
    try:
        if not is_local(folder):
            return sorted(one for one in folder.iterdir() if one.is_dir())
        with os.scandir(folder) as entries:  # tells files and folders apart without a further look
            return sorted(folder / entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []


def files_in(folder: Path) -> set[str]:
    """The names in a folder that are not folders, likewise."""
    try:
        if not is_local(folder):
            return {one.name for one in folder.iterdir() if not one.is_dir()}
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if not entry.is_dir()}
    except OSError:
        return set()
