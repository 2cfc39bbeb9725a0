"""An open session that is written to: its journal, with the lock held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sdc_guard.errors import SessionDamaged, UsageError
from sdc_guard.store.run_file import RunFile

from ..checkpoint import Checkpoint
from ..journal import Session
from ..oracles.judgement import Judgement
from ..result import Result
from .changes import changes
from .home import Home, is_guarded
from .lines import JournalLines, parse, why
from .lock import locked
from .mark import Mark, content_of, glance
from .standing import name_of
from .state import USER, Entry, Stage, State, event_of, folded, start_event

Tell = Callable[[str], None]


@dataclass
class Live:
    """A session with its journal.

    Attributes:
        home: where it lies.
        session: its folder.
        state: what its journal comes to.
        by: who judges now.
        tell: called with a line.
    """

    home: Home
    session: Session
    state: State
    tell: Tell
    by: str = USER
    _glances: dict[str, Mark] = field(default_factory=dict)
    _kept: bool = True

    @property
    def folder(self) -> Path:
        """Of the session."""
        return self.session.folder

    def add(self, event: dict[str, Any]) -> None:
        """Append an event, and take it in.

        Raises:
            OSError: the journal cannot be written; then it is not taken in.
        """
        content = {key: value for key, value in event.items() if key != "event"}
        self.session.note(str(event["event"]), **content)
        self.state = self.state.after(event)

    def judging(self, checkpoint: Checkpoint) -> None:
        """What it is like before it is judged: what is written meanwhile makes it another."""
        self._glances[self._name(checkpoint)] = glance(checkpoint.path)

    def judged(self, checkpoint: Checkpoint, judgement: Judgement, seconds: float) -> None:
        """Keep a judging of a search. A journal that cannot be written stops no search."""
        entry = self._entry(checkpoint, judgement, seconds)
        try:
            self.add(event_of(entry))
        except OSError as error:
            if self._kept:
                self.tell(f"judgings are no longer kept: {self.session.journal}: {error.strerror}")
            self._kept = False

    def stage(self, stage: Stage) -> None:
        """Keep that a judge had its say, as `judged` keeps a judging."""
        event = {"event": "stage", **asdict(stage), "at": time.time()}
        try:
            self.add(event)
        except OSError:
            self.state = self.state.after(event)

    def stopped(self, reason: str) -> None:
        """Keep why a search ended before its answer."""
        with contextlib.suppress(OSError):
            self.session.note("stopped", reason=reason, at=time.time())

    def judged_by_user(
        self, checkpoint: Checkpoint, judgement: Judgement | None, dry_run: bool = False
    ) -> None:
        """Keep what the user said; None: not to be judged.

        Args:
            checkpoint, judgement: what of what.
            dry_run: take it in without keeping it.

        Raises:
            OSError: the journal cannot be written.
        """
        if not dry_run:
            self.judging(checkpoint)
        event = event_of(self._entry(checkpoint, judgement, None))
        if dry_run:
            self.state = self.state.after(event)
        else:
            self.add(event)

    def undo(self) -> None:
        """Take the last entry back.

        Raises:
            OSError: the journal cannot be written.
        """
        self.add({"event": "undo", "at": time.time()})

    def publish(self, result: Result | None, **more: Any) -> None:
        """Publish the answer, or take back one that is none any more.

        What cannot be written is told: the answer is known.
        """
        try:
            if result is None:
                self.session.take_back()
            else:
                told = {**result.as_dict(), "exit_code": result.exit_code}
                self.session.finish({**told, **self._attempts(), **more})
        except OSError as error:
            self.tell(f"the answer cannot be kept in {self.folder}: {error.strerror}")

    def _attempts(self) -> dict[str, Any]:
        """Of a guarded run, which of its attempts the answer is about."""
        if not is_guarded(self.home.archive):
            return {}
        count = len(RunFile.read(self.home.archive).attempts)
        return {"attempts": count, "attempt": self.state.attempt}

    def look_again(self, candidates: Sequence[Checkpoint]) -> None:
        """Forget what was judged of checkpoints that have changed since, and say so."""
        for change in changes(self.state, self.home.archive, candidates):
            self.add(change.event)
            if change.text:
                self.tell(change.text)

    def _entry(
        self, checkpoint: Checkpoint, judgement: Judgement | None, seconds: float | None
    ) -> Entry:
        name = self._name(checkpoint)
        mark = self._glances.pop(name, None)
        if mark is not None and judgement is not None:
            mark = replace(mark, content=content_of(checkpoint.path))
        return Entry(checkpoint.step, name, judgement, self.by, time.time(), seconds, mark)

    def _name(self, checkpoint: Checkpoint) -> str:
        return name_of(checkpoint, self.home.archive)


def begin(
    home: Home, state: State, tell: Tell, events: Sequence[dict[str, Any]] = (), by: str = USER
) -> Live:
    """A new session, the open one from now on; with the lock held.

    Args:
        home: where.
        state: its beginning.
        tell: called with a line.
        events: more of it.
        by: who judges.

    Raises:
        OSError: the folder cannot be written.
    """
    live = Live(home, Session.under(home.folder), state, tell, by)
    live.session.note(**start_event(state))
    for event in events:
        live.add(event)
    home.open(live.session)  # last, so that a session that is open is whole
    return live


def read(home: Home, session: Session) -> tuple[State, JournalLines]:
    """What a session's journal comes to; nothing is written.

    Raises:
        SessionDamaged: it cannot be read, a cut at its end aside.
        UsageError: it is another archive's.
    """
    try:
        content = session.journal.read_bytes()
    except OSError as error:
        raise damaged(session, f"cannot be read ({error.strerror})") from None
    lines = parse(content)
    if lines.damaged:
        numbers = ", ".join(map(str, lines.damaged[:5]))
        raise damaged(session, f"cannot be read in line {numbers}")
    try:
        state = folded(lines.events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(session, f"says nothing of a session: {why(error)}") from None
    if home.named and state.archive != str(home.archive.absolute()):
        raise UsageError(
            f"the session there is of {state.archive}",
            where=str(home.folder),
            next_step="give that one, or another --session DIR",
        )
    return state, lines


def sessions_of(home: Home) -> list[Session]:
    """Every session of the archive, oldest first; in a folder that the user named not of others."""
    found = Session.in_folder(home.folder)
    if not home.named:
        return found
    ours = []
    for session in found:
        with contextlib.suppress(SessionDamaged, UsageError):  # another's, or nobody knows whose
            read(home, session)
            ours.append(session)
    return ours


def damaged(session: Session, what: str) -> SessionDamaged:
    """A journal that says nothing, and how to go on."""
    return SessionDamaged(
        f"the session's journal {what}",
        where=str(session.journal),
        next_step="`sdc-bisect reset` starts over and keeps that file; `sdc-bisect replay` takes "
        "from it what can be read",
    )


@contextlib.contextmanager
def held(home: Home, tell: Tell) -> Iterator[None]:
    """Hold the lock on the sessions of an archive; one left by a dead process is told.

    Raises:
        UsageError: another process holds it, or no session can be kept there.
    """
    home.make()
    with contextlib.ExitStack() as stack:
        try:
            stale = stack.enter_context(locked(home.folder))
        except OSError as error:
            raise home.not_kept(error) from None
        if stale is not None:
            tell(f"process {stale.pid} ended without a word: its lock is taken over")
        yield


def go_on(home: Home, session: Session, tell: Tell) -> Live:
    """The open session, to be written to; with the lock held.

    Raises:
        SessionDamaged, UsageError: as `read`.
        OSError: the journal cannot be written.
    """
    state, lines = read(home, session)
    size = session.journal.stat().st_size
    if lines.torn is not None:
        tell(f"the journal's last line was cut short and is left out: {lines.torn}")
    if size != lines.sound + 1:  # cut, or without its line break
        with session.journal.open("rb+") as file:
            file.truncate(lines.sound)
            file.seek(lines.sound)
            file.write(b"\n")
    return Live(home, session, state, tell)
