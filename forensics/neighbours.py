"""What its neighbours say of a checkpoint that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from .checkpoint import Checkpoint

_ON_EACH_SIDE: Final = 2
_MUCH_SMALLER: Final = 0.5  # of what the neighbours have


def with_size_hints(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints, a reason added to each unreadable one that is smaller than its neighbours.

    Neighbours are up to two readable ones on each side. Nothing is looked at where all are
    readable.

    Args:
        found: by step.
    """
    return [
        one if one.readable else _with_hint(one, _neighbours(found, place))
        for place, one in enumerate(found)
    ]


def _neighbours(found: Sequence[Checkpoint], place: int) -> list[Checkpoint]:
    before = [one for one in found[:place] if one.readable][-_ON_EACH_SIDE:]
    after = [one for one in found[place + 1 :] if one.readable][:_ON_EACH_SIDE]
    return [*before, *after]


def _with_hint(one: Checkpoint, others: list[Checkpoint]) -> Checkpoint:
    if not others:
        return one
    size, usual = bytes_of(one.path), [bytes_of(other.path) for other in others]
    if size >= min(usual):
        return one
    middle = int(median(usual))
    hint = f"{size:,} bytes where its neighbours have {middle:,}"
    if size < _MUCH_SMALLER * middle:
        hint = f"much smaller than its neighbours ({size:,} of {middle:,} bytes), disk full?"
    return replace(one, reasons=(*one.reasons, hint))


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 of what cannot be looked at."""
    try:
        if path.is_dir():
            return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
        return path.stat().st_size
    except OSError:
        return 0
