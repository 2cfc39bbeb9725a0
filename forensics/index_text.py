"""The list of checkpoints that `sdc-bisect index` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .checkpoint import Checkpoint

_MOST_NOTES: Final = 3
_MISSING: Final = " incomplete: "  # of a folder that lacks a file, in its reasons


def index_lines(found: Sequence[Checkpoint]) -> list[str]:
    """A line for each checkpoint: step, status, why, and in brackets what is worth telling."""
    return [_line(one) for one in found]


def _line(one: Checkpoint) -> str:
    told = f"{reasons_text(one.reasons)}{notes_text(one.notes)}"
    return f"{one.step:>10}  {one.status:<8}{told}".rstrip()


def reasons_text(reasons: Sequence[str]) -> str:
    """Reasons for a line: what was found first, then which files are missing, of these a few."""
    found = [one for one in reasons if one and _MISSING not in one]
    missing = [one for one in reasons if _MISSING in one]
    told = "; ".join([*found, *_few(missing)])
    return f"  {told}" if told else ""


def notes_text(notes: Sequence[str]) -> str:
    """Notes for the end of a line, in brackets; of many the first."""
    told = "; ".join(_few([one for one in notes if one]))
    return f"  ({told})" if told else ""


def _few(notes: Sequence[str]) -> list[str]:
    more = len(notes) - _MOST_NOTES
    return [*notes[:_MOST_NOTES], f"and {more:,} more"] if more > 0 else [*notes]
