"""The checkpoints of all formats in one place, each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .checkpoint import Checkpoint
from .locations import still_there
from .readers.reader import Reader


def gathered(path: Path, readers: Sequence[Reader]) -> list[Checkpoint]:
    """What the readers find, each file and folder as the first of them has it.

    An archive may hold several formats, of before and after a change of the script. What lies in a
    checkpoint that an earlier reader found is part of that one. Beside such checkpoints a file or
    folder whose name has no number in it is none: trainers leave the last model there.

    Args:
        path: where to look.
        readers: in order of precedence.
    """
    found: list[Checkpoint] = []
    taken: set[Path] = set()
    for reader in readers:
        earlier = bool(found)
        for one in reader.find(path):
            places = {one.path, *one.path.parents}
            if places & taken or (earlier and not _is_numbered(one.path, path)):
                continue
            found.append(one)
        taken |= {one.path for one in found}
    still_there(path)
    return found


def _is_numbered(place: Path, root: Path) -> bool:
    """Whether the file or folder in `root` that a checkpoint is, or lies in, has a number."""
    inner = place.relative_to(root).parts if place.is_relative_to(root) else ()
    return bool(inner) and any(character.isdigit() for character in "/".join(inner))
