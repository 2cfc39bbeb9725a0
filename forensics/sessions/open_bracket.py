"""What `verify` takes from a session that is still open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..checkpoint import Checkpoint
from ..missing import of_session
from ..result import Result
from .changes import changes
from .home import Home
from .live import read
from .standing import standing


def open_bracket(
    run: Path, candidates: Sequence[Checkpoint], attempt: int | None, named: Path | None = None
) -> Result | None:
    """The bracket by now of the open session, once both of its ends are known.

    Args:
        run: folder of the run, or another archive.
        candidates: its checkpoints.
        attempt: that is looked at; a session of another one has no say.
        named: folder of the sessions, if the user named one.

    Raises:
        SessionDamaged: the session's journal cannot be read.
        UsageError: it is another archive's.
    """
    home = Home.of(run, named)
    session = home.open_session()
    if session is None:
        return None
    state, _ = read(home, session)
    if state.attempt != attempt or state.asked.first_good or state.asked.by_chance:
        return None
    for change in changes(state, run, candidates):
        state = state.after(change.event)
    current = standing(state, run, candidates)
    low, high = current.bracket()
    if low is None or high is None:
        return None
    if (following := current.following()) is None:
        return of_session(run, attempt, current.result(), candidates)
    evidence = f"of session {session.folder}, which is not finished: step {following.step} is next"
    return Result("run", low, high, exact=False, proven=False, evidence=(evidence,))
