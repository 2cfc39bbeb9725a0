"""What lies where, as far as that can be told: a folder that cannot be looked into is empty."""

from __future__ import annotations

import os
from pathlib import Path

from ..locations import is_local


def names_in(folder: Path) -> set[str]:
    """The names in a folder; none if it cannot be listed."""
    try:
        if not is_local(folder):
            return {one.name for one in folder.iterdir()}
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
