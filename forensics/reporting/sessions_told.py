"""What a report says of searches and verifications, whatever state their files are in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..journal import Session
from ..sessions.home import Home
from ..sessions.lines import JournalLines, parse
from ..sessions.log_text import log_text
from ..sessions.state import State, folded
from ..wording import sentence
from .facts import MAX_LOG_LINES, Judged, Told

# keys that results of earlier versions lack
_DEFAULTS: Final[dict[str, Any]] = {
    "exact": False,
    "proven": False,
    "skipped": [],
    "tensors": [],
    "evidence": [],
    "class": None,
    "verdict": None,
    "rank": None,
}


def sessions_in(home: Home, attempts: int | None = None) -> tuple[Told, ...]:
    """The sessions of an archive or a run, oldest first.

    Args:
        home: where they lie.
        attempts: of a guarded run, how often it was started by now.
    """
    if not home.folder.is_dir():
        return ()
    found = home.open_session()
    names = sorted(p for p in home.folder.iterdir() if p.name.isdigit() and p.is_dir())
    return tuple(
        told(Session(folder), found is not None and found.folder == folder, attempts)
        for folder in names
    )


def told(session: Session, is_open: bool = False, attempts: int | None = None) -> Told:
    """One session."""
    journal, notes = _journal(session)
    state = _state(journal)
    result, damage = _result(session)
    command = str(result["schema"]["name"]).rpartition(".")[2] if result else _kind(journal, state)
    return Told(
        name=session.folder.name,
        folder=str(session.folder),
        command=command,
        is_open=is_open,
        is_current=attempts is None or result is None or result.get("attempts") in (None, attempts),
        began=None if state is None else _moment(state.began),
        finished=None if result is None else _moment(result.get("finished")),
        judged=_all_judged(journal, result),
        result=result,
        sentence="" if result is None else sentence(result),
        log=_log(state),
        notes=(*notes, *damage),
    )


_JUDGINGS: Final = ("probe", "skip")


def _all_judged(journal: JournalLines, result: Mapping[str, Any] | None) -> tuple[Judged, ...]:
    """What the journal has, and then what only the answer has: a second look on the way to it."""
    kept = [_judged(event) for event in journal.events if event["event"] in _JUDGINGS]
    known = {(one.step, one.by) for one in kept}
    probes = [] if result is None else result.get("probes", [])
    found = [_probe(one) for one in probes if isinstance(one, Mapping)]
    return (*kept, *(one for one in found if (one.step, one.by) not in known))


def _probe(probe: Mapping[str, Any]) -> Judged:
    """A result's judging; it has no time."""
    return _judged({"event": "probe", **probe, "by": probe.get("oracle", ""), "at": None})


def _journal(session: Session) -> tuple[JournalLines, list[str]]:
    try:
        journal = parse(session.journal.read_bytes())
    except FileNotFoundError:
        return JournalLines((), (), 0, None, ()), ["it has no journal"]
    except OSError as error:
        return JournalLines((), (), 0, None, ()), [f"its journal cannot be read ({error.strerror})"]
    notes = []
    if journal.damaged:
        numbers = ", ".join(map(str, journal.damaged[:5]))
        notes.append(f"its journal cannot be read in line {numbers}")
    if journal.torn is not None:
        notes.append("the last line of its journal was cut short")
    return journal, notes


def _state(journal: JournalLines) -> State | None:
    """What the journal comes to; None of a verification's, and of one that says nothing."""
    try:
        return folded(journal.events)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _kind(journal: JournalLines, state: State | None) -> str:
    if state is not None:
        return "session" if state.judge is None else "run"
    first = str(journal.events[0]["event"]) if journal.events else ""
    return "verify" if first == "verify" else "session"


def _result(session: Session) -> tuple[dict[str, Any] | None, list[str]]:
    """The result with all that is expected of it, and what is wrong with its file."""
    stored = session.result()
    if stored is None:
        is_there = (session.folder / "result.json").exists()
        return None, ["its result cannot be read"] if is_there else []
    result = {**_DEFAULTS, **stored}
    try:
        sentence(result)
        sound = all(isinstance(one, dict) for one in result["tensors"])
        sound = sound and isinstance(result["evidence"], list)
        sound = sound and all(_is_step(result[key]) for key in ("last_clean", "first_corrupt"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        sound = False
    return (result, []) if sound else (None, ["its result says nothing that is understood"])


def _is_step(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _judged(event: Mapping[str, Any]) -> Judged:
    """A journal's judging; what it lacks is left open."""
    step = event.get("step")
    return Judged(
        step=step if isinstance(step, int) else -1,
        verdict="skipped" if event["event"] == "skip" else str(event.get("verdict", "")),
        reason=str(event.get("reason", "")),
        by=str(event.get("by", "")),
        at=_moment(event.get("at")),
        seconds=_moment(event.get("seconds")),
    )


def _moment(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _log(state: State | None) -> tuple[str, ...]:
    if state is None:
        return ()
    try:
        found = log_text(state).splitlines()
    except (ValueError, OverflowError, OSError):  # a moment that is none
        return ()
    more = len(found) - MAX_LOG_LINES
    return (*found[:MAX_LOG_LINES], *([f"# and {more} lines more"] if more > 0 else []))


def named_archive(folder: Path) -> Path | None:
    """Whose session lies in a folder: what its journal says; None where it does not."""
    homes = [folder] if (folder / "journal.jsonl").is_file() else _newest_first(folder)
    for one in homes:
        state = _state(_journal(Session(one))[0])
        if state is not None and state.archive:
            return Path(state.archive)
    return None


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdigit() and p.is_dir()), reverse=True)
