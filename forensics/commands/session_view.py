"""What the commands of a session print: how far it is, what is next, the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from sdc_guard.commands.group import json_text, say
from sdc_guard.errors import ArchiveIncomplete, SdcGuardError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ..checkpoint import Checkpoint
    from ..result import Result
    from ..search import Verdict
    from ..sessions.standing import Standing
    from ..sessions.state import State


@dataclass(frozen=True)
class View:
    """A session as it is told.

    Attributes:
        folder: of the session; None where it was only tried.
        state: its entries.
        standing: these, put to the checkpoints.
        result: the answer, if the search is over.
        trouble: why it is over without one: nothing can be judged, or an end is not what was said
            of it.
        notes: lines that are worth a word.
    """

    folder: Path | None
    state: State
    standing: Standing
    result: Result | None
    notes: tuple[str, ...] = ()
    trouble: SdcGuardError | None = None

    @property
    def exit_code(self) -> int:
        """Of a command after which the search is as it is here."""
        if isinstance(self.trouble, ArchiveIncomplete):
            return self.trouble.exit_code
        return 0 if self.result is None else self.result.exit_code


def view_of(
    folder: Path | None,
    state: State,
    standing: Standing,
    notes: Sequence[str] = (),
    *,
    only_told: bool = False,
) -> View:
    """A session as it is told.

    Args:
        only_told: that there is no answer is told, too, and no error.

    Raises:
        ArchiveIncomplete: the search is over and nothing could be judged.
        UsageError: it is over, and an end is not what was said of it.
    """
    from ..locations import location
    from ..missing import of_session

    view = View(folder, state, standing, None, tuple(notes))
    if standing.following() is not None:
        return view
    try:
        there = standing.part.candidates
        result = of_session(location(state.archive), state.attempt, standing.result(), there)
        return replace(view, result=result)
    except (ArchiveIncomplete, UsageError) as error:
        if not only_told:
            raise
        return replace(view, trouble=error)


def show(command: str, view: View, as_json: bool) -> None:
    """Print a session."""
    if as_json:
        click.echo(json_text(f"sdc-bisect.{command}", **as_dict(view)))
    else:
        say(*lines(view))


def finish(command: str, view: View, as_json: bool) -> None:
    """Print a session and end with the exit code of its answer; 0 while there is none."""
    show(command, view, as_json)
    sys.exit(view.exit_code)


def as_dict(view: View) -> dict[str, Any]:
    """A session in JSON output."""
    from ..sessions.state import event_of

    standing, following = view.standing, view.standing.following()
    low, high = standing.bracket()
    ends = ("last_corrupt", "first_clean") if standing.asked.first_good else _ENDS
    return {
        "session": None if view.folder is None else str(view.folder),
        "archive": view.state.archive,
        "judged": [event_of(entry) for entry in view.state.entries],
        ends[0]: low,
        ends[1]: high,
        "next": None if following is None else _next(standing, following),
        "judgings_left": standing.left(),
        "notes": list(view.notes),
        "result": None if view.result is None else view.result.as_dict(),
        **({} if view.trouble is None else {"trouble": view.trouble.as_dict()}),
    }


_ENDS = ("last_clean", "first_corrupt")


def lines(view: View) -> list[str]:
    """A session in words."""
    from ..reporting.result_lines import lines as of_result

    if view.result is not None:
        return [*view.notes, *of_result(view.result.as_dict())]
    if view.trouble is not None:
        return [*view.notes, f"nothing is left to judge: {view.trouble}"]
    standing = view.standing
    following = standing.following()
    assert following is not None  # the search is not over
    low, high = standing.bracket()
    kinds = ("corrupt", "clean") if standing.asked.first_good else ("clean", "corrupt")
    known = f"{'?' if low is None else f'{low} {kinds[0]}'} .. " + (
        "?" if high is None else f"{high} {kinds[1]}"
    )
    left = standing.left()
    count = "1 judging" if left == 1 else f"{left} judgings"
    why = f"; {end}" if (end := _end(standing, following)) else ""
    return [
        *view.notes,
        f"judge next: step {following.step}  {following.path}",
        f"  known: {known}; about {count} left{why}",
        *_then(standing, following),
    ]


def _next(standing: Standing, following: Checkpoint) -> dict[str, Any]:
    place = standing.place(following)
    assert place is not None  # it comes from there
    content: dict[str, Any] = {"step": following.step, "path": str(following.path)}
    for verdict in ("clean", "corrupt"):
        after = standing.following({place: verdict})
        content[f"then_if_{verdict}"] = None if after is None else after.step
    return content


def _then(standing: Standing, following: Checkpoint) -> list[str]:
    """What is next after either verdict."""
    from ..sessions.standing import contradiction

    content = _next(standing, following)

    def after(verdict: Verdict) -> str:
        if contradiction(standing, following, verdict):
            return "refused"
        step = content[f"then_if_{verdict}"]
        return "the answer" if step is None else f"step {step}"

    return [f"  then, if good: {after('clean')}; if bad: {after('corrupt')}"]


def _end(standing: Standing, following: Checkpoint) -> str:
    """That it is an end that the user named."""
    given = standing.part.given.get(standing.place(following) or 0)
    if given is None or standing.part.candidates[standing.place(following) or 0] != following:
        return ""
    return f"given as {'good' if given == 'clean' else 'bad'}, to be verified"
