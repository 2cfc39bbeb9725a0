"""The session of `sdc-bisect run`: the open one, the one that Ctrl-C left, or a new one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sdc_guard.errors import (
    ArchiveUnreachable,
    CommandFailed,
    Interrupted,
    SdcGuardError,
    UsageError,
)

from ..checkpoint import Checkpoint
from ..journal import Session
from ..result import Result
from ..search.asked import Asked
from .home import Home
from .live import Live, begin, go_on, read
from .lock import locked
from .process import working_on
from .standing import Standing, counted, standing
from .state import State

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Search:
    """What `run` was asked for.

    Attributes:
        home: of the archive's sessions.
        asked: the search's options.
        attempt: of a guarded run.
        judge: the oracle's name, and its command.
        typed: options that were given and that an open session has its own of.
        candidates: the checkpoints that there are.
    """

    home: Home
    asked: Asked
    attempt: int | None
    judge: tuple[str, ...]
    typed: tuple[str, ...]
    candidates: Sequence[Checkpoint]

    def planned(self) -> Standing:
        """Where the search would begin; nothing is written, no lock is taken.

        Raises:
            SessionDamaged, UsageError: as `session`.
        """
        found = self.home.open_session()
        state = None if found is None else self._state_of(found)
        return self.standing_of(state or self._new_state())

    @contextlib.contextmanager
    def session(self, tell: Tell) -> Iterator[tuple[Live | None, Standing]]:
        """The session to judge in, with the lock held; None where none can be kept.

        Raises:
            SessionDamaged: the open session's journal cannot be read.
            UsageError: another process judges in it, or it has other options.
        """
        new = self.standing_of(self._new_state())  # options that do not fit begin nothing
        with contextlib.ExitStack() as stack:
            live = self._live(stack, tell)
            if live is None:
                yield None, new
                return
            stack.enter_context(working_on(live.folder))
            live.by = self.judge[0]
            live.look_again(self.candidates)
            try:
                yield live, self.standing_of(live.state)
            except SdcGuardError as error:
                # a command that is mended, or a store that answers again, goes on; another error
                # would come again from what is kept
                if live.state.judge is not None and not isinstance(
                    error, Interrupted | CommandFailed | ArchiveUnreachable
                ):
                    self.home.close()
                raise

    def done(self, live: Live, result: Result) -> None:
        """Publish the answer; a session that `run` began is over."""
        live.publish(result)
        if live.state.judge is not None:
            with contextlib.suppress(OSError):  # it then answers again, without judging
                self.home.close()

    def _live(self, stack: contextlib.ExitStack, tell: Tell) -> Live | None:
        try:
            self.home.make_folder()
            stale = stack.enter_context(locked(self.home.folder))
        except OSError as error:
            if self.home.open_session() is not None:
                raise self.home.not_kept(error) from None
            tell(f"what is judged is not kept: {self.home.not_kept(error)}")
            return None
        if stale is not None:
            tell(f"process {stale.pid} ended without a word: its lock is taken over")
        found = self.home.open_session()
        if found is not None:
            if self._state_of(found) is not None:
                live = go_on(self.home, found, tell)
                tell(f"going on with session {found.folder}: {_whose(live.state)}")
                return live
            self.home.close()
            tell(f"the session of another search was not finished, and is kept: {found.folder}")
        live = begin(self.home, self._new_state(), tell)
        tell(f"a session of this search began: judgings are kept in {live.folder}")
        return live

    def _state_of(self, session: Session) -> State | None:
        """The open session, if it is the one to go on with."""
        state, _ = read(self.home, session)
        if state.judge is not None:
            same = (state.judge, state.asked, state.attempt)
            return state if same == (self.judge, self.asked, self.attempt) else None
        if self.typed:
            raise UsageError(
                f"the open session has options of its own: leave out {', '.join(self.typed)}",
                where=str(session.folder),
                next_step="or `sdc-bisect reset` ends it",
            )
        if state.attempt != self.attempt:
            wanted = "" if state.attempt is None else f" {state.attempt}"
            raise UsageError(
                "the open session is of another attempt",
                where=str(session.folder),
                next_step=f"give --attempt{wanted}" if wanted else "leave out --attempt",
            )
        return state

    def standing_of(self, state: State) -> Standing:
        """A session's entries, put to the checkpoints."""
        return standing(state, self.home.archive, self.candidates)

    def _new_state(self) -> State:
        archive = str(self.home.archive.absolute())
        return State(archive, self.asked, self.attempt, self.judge, time.time())


def _whose(state: State) -> str:
    counts = counted(state.entries)
    return ", ".join(f"{count} judged by {by}" for by, count in counts.items()) or "none judged"
