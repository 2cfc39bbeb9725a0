"""Checkpoints that a replay writes over, because the script saves to the same place again.

A guard's own checkpoints go into the replay's folder. What the script saves by itself goes where
the script says, and a replay reaches the same steps: unless it is told another folder, it writes
over the evidence. `safe_copies` keeps what it may write over; what it writes over besides is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Checkpoint
from .locations import is_local

State = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Before:
    """What the checkpoints' files were before the replays.

    Attributes:
        states: of each checkpoint the name, size in bytes and time of change in ns of each file.
    """

    states: tuple[tuple[Checkpoint, State], ...]

    @classmethod
    def of(cls, checkpoints: Sequence[Checkpoint]) -> Before:
        """Look at the files; none is read."""
        return cls(tuple((one, _state(one.path)) for one in checkpoints))

    def written_over(self) -> str | None:
        """A line that names the checkpoints whose files are others now; None if there are none.

        One that is gone does not count: a retention deletes, and a replay does not.
        """
        changed = [one for one, was in self.states if (now := _state(one.path)) and now != was]
        if not changed:
            return None
        names = [f"{one.path.name} (step {one.step})" for one in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        return (
            f"written over while steps were replayed: {', '.join(names)}{more}; what the training "
            "saved there is gone. Have replays save elsewhere: {run} in the command is a folder "
            "for it"
        )


def at_risk(
    command: Sequence[str], run: Path, checkpoints: Sequence[Checkpoint], start: int, until: int
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """The checkpoints that a replay's script may save again in their place.

    Args:
        command: the resume command; one that names `{run}` has a folder of its own to save to.
        run: the run's folder; what lies in its archive a guard wrote.
        checkpoints: of the run.
        start, until: the steps after `start` up to `until` are replayed.

    Returns:
        those that the script saved by itself, and those of the guard's archive.
    """
    if not command or any("{run}" in word for word in command):
        return [], []
    inside = run.resolve() / "archive"
    passed = [one for one in checkpoints if start < one.step <= until and is_local(one.path)]
    own = [one for one in passed if not one.path.resolve().is_relative_to(inside)]
    return own, [one for one in passed if one not in own]


def warning(one: Checkpoint) -> str:
    """What to say before a replay that may write over a checkpoint of which there is no copy."""
    return (
        f"the script saved {one.path.name} (step {one.step}) by itself, the command does not name "
        "{run}, a folder for what a replay saves, and no copy of that file is kept"
    )


def _state(path: Path) -> State:
    try:
        files = [path] if path.is_file() else sorted(x for x in path.rglob("*") if x.is_file())
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()  # gone, or not to be looked at
    return tuple((name, one.st_size, one.st_mtime_ns) for name, one in found)
