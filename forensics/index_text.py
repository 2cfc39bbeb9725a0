"""The list of checkpoints that `sdc-bisect index` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sdc_guard.shown import shown

from .checkpoint import Checkpoint

_MOST_NOTES: Final = 3
_MISSING: Final = " incomplete: "  # of a folder that lacks a file, in its reasons


def index_lines(found: Sequence[Checkpoint]) -> list[str]:
    """A line for each checkpoint: step, status, why, and in brackets what is worth telling.

    Where a step has several, their names come after the status.
    """
    names = names_of_several(found)
    return [_line(one, names[place]) for place, one in enumerate(found)]


def _line(one: Checkpoint, name: str) -> str:
    told = f"{name}{reasons_text(one.reasons)}{notes_text(one.notes)}"
    return f"{one.step:>10}  {one.status:<8}{told}".rstrip()


def names_of_several(found: Sequence[Checkpoint]) -> list[str]:
    """For a line: the name of each checkpoint whose step others have, too; else ""."""
    steps = Counter(one.step for one in found)
    names = Counter(one.path.name for one in found if steps[one.step] > 1)
    return [_name(one, names) if steps[one.step] > 1 else "" for one in found]


def _name(one: Checkpoint, names: Counter[str]) -> str:
    """Its own, with its folder's where another one is called so, too."""
    name = one.path.name
    return f"  {shown(name if names[name] == 1 else f'{one.path.parent.name}/{name}')}"


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
