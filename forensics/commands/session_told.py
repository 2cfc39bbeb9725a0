"""`sdc-bisect status` and `log`: what a session knows. They change nothing and need no lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdc_guard.commands.group import json_option, json_text

from .answering import progress
from .session_place import archive_argument, home_of, no_session, session_option
from .session_view import show, view_of

if TYPE_CHECKING:
    from ..sessions.home import Home
    from ..sessions.state import State


@click.command("status")
@archive_argument
@session_option
@json_option
def status_command(path: Path | None, named: Path | None, as_json: bool) -> None:
    """Tell how far the open session of PATH is, and what to judge next.

    Its exit code is 0, whatever the session has found. PATH is the working directory if it is
    left out. What changed since it was judged is told and counts no more.

    \b
    Exit codes: 0 told, 2 usage, or no session is open, 5 archive incomplete.

    \b
    Examples:
      sdc-bisect status
      sdc-bisect status runs/pretrain --json
    """
    from ..sessions.archive import checkpoints_of
    from ..sessions.changes import changes
    from ..sessions.standing import counted, out_of_order, standing

    home = home_of(path, named)
    state, folder = _read(home)
    candidates = checkpoints_of(home.archive, state.attempt)
    notes = []
    for change in changes(state, home.archive, candidates):
        state = state.after(change.event)
        notes += [change.text] if change.text else []
    judged = ", ".join(f"{count} by {by}" for by, count in counted(state.entries).items())
    skipped = sum(entry.judgement is None for entry in state.entries)
    current = standing(state, home.archive, candidates)
    if note := out_of_order(current):
        notes.append(note)
    notes.insert(
        0,
        f"session {folder}: {len(current.part.candidates)} checkpoints, judged: {judged or 'none'}"
        + f", skipped: {skipped}" * bool(skipped),
    )
    show("status", view_of(folder, state, current, notes, only_told=True), as_json)


@click.command("log")
@archive_argument
@session_option
@json_option
def log_command(path: Path | None, named: Path | None, as_json: bool) -> None:
    """Print what was judged in the open session of PATH, by whom, and when.

    `replay` takes this text in again. A line is a word (good, bad, untestable, skip), a step, and
    KEY=VALUE; only word and step are needed, so that lines can be changed and written by hand.
    PATH is the working directory if it is left out.

    \b
    Exit codes: 0 told, 2 usage, or no session is open.

    \b
    Examples:
      sdc-bisect log archive > search.log
      sdc-bisect log | grep by=user
    """
    from ..sessions.log_text import log_text
    from ..sessions.state import event_of

    home = home_of(path, named)
    state, folder = _read(home)
    text = log_text(state)
    if as_json:
        judged = [event_of(entry) for entry in state.entries]
        click.echo(json_text("sdc-bisect.log", session=str(folder), judged=judged, text=text))
    else:
        click.echo(text, nl=False)


def _read(home: Home) -> tuple[State, Path]:
    """The open session as it is in its journal."""
    from ..sessions.live import read

    session = home.open_session()
    if session is None:
        raise no_session(home)
    state, lines = read(home, session)
    if lines.torn is not None:
        progress(f"the journal's last line was cut short and is left out: {lines.torn}")
    return state, session.folder
