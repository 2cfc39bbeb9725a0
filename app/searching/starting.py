"""Starting and stopping searches from the page.

Only three commands can be started, and no text from a browser is a part of any of them: a search
by what was recorded, one by the command that whoever started the dashboard allowed, and a replay by
the resume command that the run itself recorded, which is shown before.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import streamlit as st

from forensics.sessions.home import Home
from forensics.sessions.process import worker_of
from sdc_guard.errors import UsageError
from sdc_guard.hosts import JUDGE_VARIABLE

from ..wording import plain
from . import searches
from .launch import Launcher, Started, may_stop, not_writable

_FOLLOW: Final = "sessions before the search that this viewer started"


@dataclass(frozen=True)
class Choice:
    """A search that can be started.

    Attributes:
        name: of the button.
        arguments: of `sdc-bisect`.
        about: what it does.
        runs: a command of a user's that it runs; "" for none.
    """

    name: str
    arguments: tuple[str, ...]
    about: str
    runs: str = ""

    @property
    def command(self) -> str:
        """For a shell."""
        return shlex.join(("sdc-bisect", *self.arguments))

    @property
    def key(self) -> str:
        """Of the button: a command that changed since it was shown is another button's."""
        said = "\0".join((*self.arguments, self.runs))
        return f"start {hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


def choices(run: Path, resume: str | None, judge: str | None) -> list[Choice]:
    """What can be started.

    Args:
        run: the run's folder.
        resume: the command that its training script recorded.
        judge: the command that whoever started the dashboard allowed.
    """
    found = [
        Choice(
            "Search by the record",
            ("run", str(run)),
            "Compares checkpoints with what the guard recorded, to the first corrupt one. It "
            "reads, and runs nothing of the training.",
        )
    ]
    if judge and (words := _words(judge)):
        found.append(
            Choice(
                "Search by the command",
                ("run", str(run), "--", *words),
                "Runs the command that whoever started the dashboard gave, once a checkpoint.",
                judge,
            )
        )
    if resume:
        found.append(
            Choice(
                "Replay",
                ("verify", str(run), "--recorded"),
                "Runs the training again from the last clean checkpoint, by the command that the "
                "run recorded, and compares every step.",
                resume,
            )
        )
    return found


def _words(judge: str) -> list[str]:
    try:
        return shlex.split(judge)
    except ValueError:  # a quote that is not closed
        return []


@st.cache_resource(show_spinner=False)
def launcher() -> Launcher:
    """The one of this server."""
    return Launcher()


def is_starting(run: Path) -> bool:
    """Whether a search that was started here has no session yet, or runs."""
    found = launcher().newest(run)
    return found is not None and found.code is None


def panel(run: Path, resume: str | None, running: str | None) -> None:
    """The buttons, and what became of the last press.

    Args:
        run: the run's folder.
        resume: the recorded resume command.
        running: the session that is worked on, or None.
    """
    found = choices(run, resume, os.environ.get(JUDGE_VARIABLE))
    if running is not None or is_starting(run):
        _running(run, running)
        return
    _ended(launcher().newest(run))
    if why := not_writable(run):
        st.info(f"No search can be started here: {plain(why)}. On a copy, or as its owner:")
        for choice in found:
            st.code(choice.command, language=None)
        return
    with st.container(horizontal=True):
        for choice in found:
            with st.popover(choice.name, icon=":material/play_arrow:"):
                _offer(run, choice)


def _offer(run: Path, choice: Choice) -> None:
    st.write(choice.about)
    if choice.runs:
        st.caption("It runs this command here; read it before:")
        st.code(choice.runs, language=None, wrap_lines=True)
    st.caption("The same from a terminal:")
    st.code(choice.command, language=None, wrap_lines=True)
    st.button("Start", key=choice.key, on_click=_start, args=(run, choice))


def _start(run: Path, choice: Choice) -> None:
    st.session_state.pop("not started", None)
    before = frozenset(searches.names(run))
    try:
        launcher().start(run, choice.arguments)
    except UsageError as error:
        st.session_state["not started"] = str(error)
        return
    st.session_state[_FOLLOW] = before


def followed(run: Path, running: str | None) -> str | None:
    """The session of the search that this viewer has just started, once; None if there is none yet.

    Args:
        run: the run's folder.
        running: its session that is worked on.
    """
    before = st.session_state.get(_FOLLOW)
    if before is None:
        return None
    # it may be over before the page is drawn again
    found = running or next((name for name in searches.names(run) if name not in before), None)
    if found is not None or not is_starting(run):
        del st.session_state[_FOLLOW]
    return found


def _running(run: Path, name: str | None) -> None:
    """A search that goes on."""
    newest = launcher().newest(run)
    mine = newest if newest is not None and newest.code is None else None
    if mine is not None and name is not None:
        mine.begun = True
    worker = None if name is None else worker_of(Home.of(run, None).folder / name)
    asked = mine is not None and mine.stopping is not None
    with st.container(horizontal=True, vertical_alignment="center"):
        if name is not None:
            st.markdown(f"**▶ Session {plain(name)}** is running")
        elif asked:
            st.markdown("**◼ Stopping**")
        elif mine is not None and mine.begun:
            st.markdown("**◼ Ending**")
        else:
            st.markdown("**▶ Starting** a search")
        if worker is not None and not may_stop(worker):
            st.caption("It was not started from a page: Ctrl-C in its terminal stops it.")
        elif name is not None or asked or (mine is not None and not mine.begun):
            st.button(
                "Kill it" if asked else "Stop",
                key="stop",
                icon=":material/stop:",
                help="What is judged is kept, and the same search goes on from there.",
                on_click=launcher().stop,
                args=(run, worker),
            )
        if asked:
            st.caption("Asked to stop; what was done is being kept.")
    if (text := st.session_state.get("not started")) is not None:
        st.warning(plain(text))
    if mine is not None and (said := mine.said().strip()):
        st.caption(plain(said.splitlines()[-1]))


def _ended(last: Started | None) -> None:
    """What came of the search that was started last, where its session does not say it."""
    if (text := st.session_state.pop("not started", None)) is not None:
        st.error(plain(text))
    if last is None or last.code is None or last.code in (0, 1, 3):
        return
    said = last.said().strip().splitlines()
    if last.stopping is not None:
        st.info(plain(f"Stopped: {said[-1] if said else 'before it had begun'}"))
    else:
        text = said[-1] if said else f"it ended with {last.code}"
        st.error(plain(f"The search that was started here ended without an answer: {text}"))
