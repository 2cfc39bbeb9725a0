"""`sdc-bisect start`, `reset` and `replay`: where a session begins and ends."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdc_guard.commands.group import json_option, json_text, say
from sdc_guard.errors import UsageError
from sdc_guard.lake.location import is_lake, without_password

from .answering import progress
from .opening import attempt_option
from .place import PLACE
from .search_options import SearchOptions, session_options
from .session_place import (
    archive_argument,
    home_of,
    no_session,
    session_option,
)
from .session_view import finish, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..checkpoint import Checkpoint
    from ..sessions.home import Home
    from ..sessions.state import Entry, State


@click.command("start")
@click.argument("path", type=PLACE)
@session_options
@attempt_option
@click.option("--dry-run", is_flag=True, help="Say what would be judged first; begin nothing.")
@session_option
@json_option
def start_command(
    path: Path,
    attempt: int | None,
    dry_run: bool,
    named: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Begin to search the checkpoints of PATH, judged by you, by `run`, or by both.

    PATH is a run's folder or any folder of checkpoints. It prints which one to judge next. Then
    say `good STEP`, `bad STEP` or `skip STEP`, or let `run` judge the rest. All options of the
    search are given here and hold until `reset`.

    --good and --bad name the ends of the search. They are judged first, like all others;
    --trust-ends takes them as they are, and the answer says so.

    The session is kept in RUN/bisect/NUMBER of a run's folder, else in PATH/.sdc-bisect/NUMBER.
    If that cannot be written give --session DIR, with each command, or set $SDC_BISECT_SESSION.
    One session of an archive is open at a time.

    \b
    Exit codes: 0 begun, 2 usage, or a session is open already, 5 archive incomplete;
    with --trust-ends that of the answer if nothing is left to judge.

    \b
    Examples:
      sdc-bisect start runs/pretrain
      sdc-bisect start archive --good 1000 --bad 9000
      sdc-bisect start archive --good 1000 --bad 9000 --trust-ends --skip 4000,4500
      sdc-bisect start /mnt/read-only --session ~/bisect
    """
    from ..sessions.home import Home
    from ..sessions.standing import standing
    from ..sessions.state import State

    _no_lake(path)
    asked = SearchOptions(**options).asked()
    home = Home.of(path, named)
    candidates = _several(path, attempt)
    state = State(str(path.absolute()), asked, attempt, began=time.time())
    current = standing(state, path, candidates)
    if dry_run:
        finish("start", view_of(None, state, current, ("nothing was begun",)), as_json)
    finish("start", view_of(_begun(home, state, []), state, current), as_json)


@click.command("reset")
@archive_argument
@session_option
@json_option
def reset_command(path: Path | None, named: Path | None, as_json: bool) -> None:
    """End the open session of PATH. Nothing is deleted: its folder stays, with the journal.

    PATH is the working directory if it is left out. A session whose journal is damaged is ended
    like any other.

    \b
    Exit codes: 0 ended, 2 usage, or no session is open.

    \b
    Examples:
      sdc-bisect reset runs/pretrain
    """
    from ..sessions.home import Home
    from ..sessions.live import held

    # the session is not read: it may be damaged
    home = Home(Path(), named, True) if path is None and named else home_of(path, named)
    if home.open_session() is None:
        raise no_session(home)
    with held(home, progress):
        session = home.open_session()
        home.close()
    folder = None if session is None else str(session.folder)
    if as_json:
        click.echo(json_text("sdc-bisect.reset", kept=folder))
    else:
        say(f"no session is open any more; the last one is kept in {folder}")


@click.command("replay")
@click.argument("logfile", type=click.File("rb"))
@archive_argument
@click.option("--dry-run", is_flag=True, help="Say what the session would be; begin nothing.")
@session_option
@json_option
def replay_command(
    logfile: Any, path: Path | None, dry_run: bool, named: Path | None, as_json: bool
) -> None:
    """Begin a session for PATH with what LOGFILE says was judged.

    LOGFILE is what `log` printed, also after lines were changed or taken out by hand, or the
    journal of another session, of which it takes what can be read; `-` is stdin. What is not in
    the archive, or is not what was judged by its bytes, is left out and told.

    \b
    Exit codes: 0 something is left to judge, or nothing is corrupt, 1 located,
    2 usage, or LOGFILE is no log, 3 a range only, 5 archive incomplete.

    \b
    Examples:
      sdc-bisect log archive > search.log
      sdc-bisect reset archive
      sdc-bisect replay search.log archive
      sdc-bisect replay archive/.sdc-bisect/0001/journal.jsonl archive
    """
    from ..sessions.home import Home
    from ..sessions.log_text import read_log
    from ..sessions.standing import standing

    archive = path or Path()
    _no_lake(archive)
    home = Home.of(archive, named)
    stored, left = read_log(logfile.read(), str(logfile.name))
    candidates = _several(archive, stored.attempt)
    entries: list[Entry] = []
    for entry in stored.entries:
        taken, why = _taken(entry, archive, candidates)
        if taken is not None:
            entries.append(taken)
        else:
            left.append(why)
    state = replace(stored, archive=str(archive.absolute()), began=time.time(), judge=None)
    state = replace(state, entries=(), undone=0)
    full = replace(state, entries=tuple(entries))
    current = standing(full, archive, candidates)
    for line in left:
        progress(f"left out: {line}")
    folder = None if dry_run else _begun(home, state, entries)
    notes = ("nothing was begun",) if dry_run else ()
    finish("replay", view_of(folder, full, current, notes), as_json)


def _taken(
    entry: Entry, archive: Path, candidates: Sequence[Checkpoint]
) -> tuple[Entry | None, str]:
    """An entry of a log for the checkpoints here, or why it is left out."""
    from ..sessions.mark import content_of, glance
    from ..sessions.standing import chosen, name_of

    try:
        one = chosen(entry.name or str(entry.step), archive, candidates)
    except UsageError as error:
        return None, str(error)
    mark = None
    if entry.judgement is not None:
        known = None if entry.mark is None else entry.mark.content
        content = content_of(one.path, known)
        if known is not None and content != known:
            return None, f"step {entry.step}: its bytes are not those that were judged"
        mark = replace(glance(one.path), content=content)
    return replace(entry, step=one.step, name=name_of(one, archive), mark=mark), ""


def _begun(home: Home, state: State, entries: Sequence[Entry]) -> Path:
    """Begin the session.

    Raises:
        UsageError: one is open already, or none can be kept there.
    """
    from ..sessions.live import begin, held
    from ..sessions.state import event_of

    with held(home, progress):
        _none_open(home)
        try:
            live = begin(home, state, progress, [event_of(entry) for entry in entries])
        except OSError as error:
            raise home.not_kept(error) from None
    progress(f"the session is kept in {live.folder}")
    return live.folder


def _none_open(home: Home) -> None:
    session = home.open_session()
    if session is not None:
        raise UsageError(
            "a session is open already",
            where=str(session.folder),
            next_step="`sdc-bisect status` tells of it, `sdc-bisect reset` ends and keeps it",
        )


def _several(path: Path, attempt: int | None) -> list[Checkpoint]:
    """The checkpoints of an archive.

    Raises:
        UsageError: it is one checkpoint itself.
    """
    from ..sessions.archive import checkpoints_of

    found = checkpoints_of(path, attempt)
    if any(one.path == path for one in found):
        raise UsageError(
            "that is one checkpoint, and there is nothing to search in one",
            where=str(path),
            next_step="give the folder that holds the checkpoints",
        )
    return found


def _no_lake(path: Path) -> None:
    if is_lake(path):
        raise UsageError(
            "checkpoints lie in a run's folder",
            where=without_password(str(path)),
            next_step="give the folder; of a run in a lake there is sdc-bisect report",
        )
