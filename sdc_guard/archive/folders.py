"""Names in an archive's folder: whole checkpoints, copies of their weights, what is proven."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

WHOLE: Final = "step="
CONVICTIONS: Final = "convictions.jsonl"  # beside the folders: what was proven against them
WEIGHTS: Final = "weights="  # a name of its own: whoever looks for checkpoints does not resume it
WEIGHTS_FILE: Final = "weights.pt"
NAME: Final = re.compile(r"(?:step|weights)=(\d+)(-a\d+(\.\d+)?)?")


def step_named(name: str) -> int:
    """The step in the name of a checkpoint's folder; -1 where there is none."""
    digits = name.partition("=")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) < 19 else -1


def is_copy(folder: Path) -> bool:
    """Whether a folder has the name of a copy of weights."""
    return folder.name.startswith(WEIGHTS)


def all_folders(archive: Path) -> list[Path]:
    """What has the name of a checkpoint or of a copy of weights, in order of the names."""
    return sorted((*archive.glob(f"{WHOLE}*"), *archive.glob(f"{WEIGHTS}*")))


def free_copy_name(archive: Path, step: int, attempt: int) -> Path:
    """weights=000100, or weights=000100-a2 where another attempt's has that name."""
    folder = archive / f"{WEIGHTS}{step:06d}"
    copies = 0
    while folder.exists():
        folder = archive / f"{WEIGHTS}{step:06d}-a{attempt}{f'.{copies}' if copies else ''}"
        copies += 1
    return folder
