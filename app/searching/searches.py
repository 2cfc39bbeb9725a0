"""The searches of a run as they are now: answered, running, stopped, open or not to be read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from forensics.interrupted import FILE
from forensics.journal import Session
from forensics.reporting.facts import Told
from forensics.reporting.sessions_told import told
from forensics.sessions.home import Home
from forensics.sessions.lines import parse
from forensics.sessions.process import Worker, worker_of

Standing = Literal["answered", "running", "stopped", "open", "unreadable"]

SYMBOLS: Final[dict[Standing, str]] = {
    "answered": "✔",
    "running": "▶",
    "stopped": "◼",
    "open": "○",
    "unreadable": "?",
}
_LOG: Final = 2_000  # bytes of a replay's newest output


@dataclass(frozen=True)
class Search:
    """One search or verification.

    Attributes:
        told: what its journal and its result say.
        events: of its journal, as they are stored.
        worker: who works on it now; None where nobody does.
    """

    told: Told
    events: tuple[Mapping[str, Any], ...] = ()
    worker: Worker | None = None

    @property
    def standing(self) -> Standing:
        """How far it is."""
        if self.worker is not None:
            return "running"
        if self.told.result is not None:
            return "answered"
        if any("result" in note for note in self.told.notes) or not self.events:
            return "unreadable"
        judge = self.events[0].get("judge") or self.events[0].get("event") == "verify"
        return "open" if self.told.is_open and not judge else "stopped"

    @property
    def stopped_by(self) -> str:
        """Why it ended without an answer, as far as the journal says so."""
        reasons = [str(one.get("reason", "")) for one in self.events if one["event"] == "stopped"]
        last = self.events[-1]["event"] if self.events else ""
        if reasons and last == "stopped":
            return reasons[-1]
        return "it ended without a word: its process was killed, or the machine went down"

    @property
    def command(self) -> str:
        """`run`, `verify`, or `session` for one that a user judges in."""
        return self.told.command


def names(run: Path) -> list[str]:
    """The sessions of a run, newest first."""
    return [one.folder.name for one in reversed(Session.in_folder(Home.of(run, None).folder))]


def newest_running(run: Path) -> str | None:
    """The newest session of a run that is worked on."""
    folder = Home.of(run, None).folder
    return next((name for name in names(run) if worker_of(folder / name) is not None), None)


def newest_answered(run: Path) -> str | None:
    """The newest session of a run that has an answer; without one the newest."""
    folder, found = Home.of(run, None).folder, names(run)
    answered = (name for name in found if (folder / name / "result.json").exists())
    return next(itertools.chain(answered, found), None)


def search_of(run: Path, name: str, attempts: int | None) -> Search:
    """One session of a run, whatever state its files are in.

    Args:
        run: the run's folder.
        name: of the session's folder, as `names` has it.
        attempts: how often the run was started by now.
    """
    home = Home.of(run, None)
    session, found = Session(home.folder / name), home.open_session()
    # looked at first: a session that ends in between then has its answer, and is not "stopped"
    worker = worker_of(session.folder)
    is_open = found is not None and found.folder == session.folder
    try:
        events = parse(session.journal.read_bytes()).events
    except OSError:
        events = ()
    return Search(told(session, is_open, attempts), events, worker)


def ended_replays(told: Told) -> set[str]:
    """Names of a verification's replays that came to their end."""
    found = set()
    for path in Path(told.folder).glob(f"*/{FILE}"):
        try:
            if json.loads(path.read_text(encoding="utf-8"))["ended"] is True:
                found.add(path.parent.name)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being written, or not to be read
    return found


def newest_output(told: Told) -> str:
    """The last lines that the replay printed which is under way; "" without one."""
    logs = sorted(Path(told.folder).glob("*/output.log"), key=_modified)
    if not logs:
        return ""
    try:
        with logs[-1].open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _LOG, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-4:])


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone since it was listed
        return 0.0
