"""Which archive and which session a command is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sdc_guard.errors import UsageError

from ..locations import is_url, location
from .answering import progress
from .place import PLACE

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..sessions.home import Home
    from ..sessions.live import Live

_VARIABLE: Final = "SDC_BISECT_SESSION"  # sessions.home.VARIABLE, which imports too much for --help


def _own_folder(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    """A folder on this machine: a session is written to, and nothing is behind a URL."""
    if value is None:
        return None
    if not value.strip():
        raise UsageError("--session names no folder: it is empty", next_step="--session DIR")
    if is_url(value):
        what = "a session is kept on this machine, and that is a URL"
        raise UsageError(what, where=str(location(value)), next_step="--session DIR")
    return Path(value)


session_option = click.option(
    "--session",
    "named",
    callback=_own_folder,
    envvar=_VARIABLE,
    show_envvar=True,
    metavar="DIR",
    help="Keep sessions there, not in PATH.",
)
archive_argument = click.argument("path", required=False, type=PLACE)


def home_of(path: Path | None, named: Path | None) -> Home:
    """Where the sessions of an archive lie; without a path, of the one in the working directory.

    With --session and without a path the session itself says whose it is.
    """
    from ..sessions.home import Home

    if path is None and named is not None:
        return _of_named(named)
    return Home.of(path or Path(), named)


def _of_named(named: Path) -> Home:
    from ..sessions.home import Home
    from ..sessions.live import read

    session = Home(Path(), named).open_session()
    if session is None:
        raise no_session(Home(Path(), named, True))
    state, _ = read(Home(Path(), named), session)
    return Home(location(state.archive), named, True)


def no_session(home: Home) -> UsageError:
    """That none is open."""
    return UsageError(
        "no session is open there",
        where=str(home.folder),
        next_step="`sdc-bisect start PATH` begins one; without PATH the archive is the working "
        "directory",
    )


@contextlib.contextmanager
def open_live(home: Home) -> Iterator[tuple[Live, Sequence[Checkpoint]]]:
    """The open session with the lock held, and the checkpoints that there are now.

    What changed since it was judged is forgotten.
    """
    from ..sessions.archive import checkpoints_of
    from ..sessions.live import go_on, held

    if home.open_session() is None:
        raise no_session(home)
    with held(home, progress):
        session = home.open_session()
        if session is None:  # closed while we waited for nothing
            raise no_session(home)
        live = go_on(home, session, progress)
        candidates = checkpoints_of(home.archive, live.state.attempt)
        live.look_again(candidates)
        yield live, candidates
