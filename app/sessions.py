"""Results of the `sdc-bisect` sessions of a run, whatever state their files are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forensics.journal import Session
from forensics.wording import sentence

from .records import Incident

BATCH: Final = "batch"  # class of what goes wrong where a step was given other data

_DEFAULTS: dict[str, Any] = {
    "schema": {"name": "sdc-bisect.run", "version": 1},
    "exact": False,
    "proven": False,
    "skipped": [],
    "tensors": [],
    "class": None,
    "verdict": None,
    "rank": None,
    "watched": None,
    "finished": None,
    "more_tensors": 0,
}


@dataclass(frozen=True)
class SessionResult:
    """One session's answer.

    Attributes:
        session: the name of its folder.
        sentence: the answer in words, empty when it cannot be read.
        last_clean, first_corrupt: steps; None when there is none.
        proven: whether an exact comparison convicts.
        current: whether the run was not started again since.
        tensors: what differs, as stored: name, index, bits, before, after.
        verdict: of a verification, which rung of the replay ladder it reached; else None.
        finished: seconds since the epoch, or None when that was not stored.
        kind: class of the fault; None where none is named.
        is_replay: whether steps were replayed, and not checkpoints searched.
        more_tensors: how many differ beside those of `tensors`.
    """

    session: str
    sentence: str = ""
    last_clean: int | None = None
    first_corrupt: int | None = None
    proven: bool = False
    current: bool = True
    tensors: tuple[dict[str, Any], ...] = ()
    verdict: str | None = None
    finished: float | None = None
    kind: str | None = None
    is_replay: bool = False
    more_tensors: int = 0

    @property
    def readable(self) -> bool:
        """Whether the file could be understood."""
        return bool(self.sentence)

    @property
    def accuses(self) -> bool:
        """Whether it says, of the run as it is now, that something is corrupt."""
        return self.readable and self.current and self.first_corrupt is not None


def session_results(run: Path, attempts: int) -> list[SessionResult]:
    """The results of all sessions that have one, oldest first.

    Args:
        run: the run's folder.
        attempts: how often the run was started by now.
    """
    return [
        _parsed(session, attempts)
        for session in Session.all(run)
        if (session.folder / "result.json").exists()
    ]


def newest_bracket(results: Sequence[SessionResult]) -> SessionResult | None:
    """The newest result that still counts and names something corrupt."""
    return next((result for result in reversed(results) if result.accuses), None)


def verdict_on(results: Sequence[SessionResult], opened: int) -> SessionResult | None:
    """The newest verification that names the step at which an incident was opened."""
    return next(
        (
            result
            for result in reversed(results)
            if result.accuses and result.verdict is not None and result.first_corrupt == opened
        ),
        None,
    )


def _parsed(session: Session, attempts: int) -> SessionResult:
    name = session.folder.name
    stored = session.result()
    if stored is None:
        return SessionResult(name)
    content = {**_DEFAULTS, **stored}
    try:
        verify = str(content["schema"]["name"]).endswith("verify")
        return SessionResult(
            session=name,
            sentence=sentence(content),
            last_clean=_step(content["last_clean"]),
            first_corrupt=_step(content["first_corrupt"]),
            proven=content["proven"] is True,
            current=content.get("attempts", attempts) == attempts,
            tensors=tuple(dict(tensor) for tensor in content["tensors"]),
            verdict=str(content["verdict"]) if verify and content["verdict"] else None,
            finished=None if content["finished"] is None else float(content["finished"]),
            kind=None if content["class"] is None else str(content["class"]),
            is_replay=verify,
            more_tensors=int(content["more_tensors"] or 0),
        )
    except (KeyError, TypeError, ValueError):
        return SessionResult(name)


def _step(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"not a step: {value!r}")


def first_bad(incidents: Sequence[Incident], results: Sequence[SessionResult]) -> int | None:
    """The first step that something was found at: a search's answer, else the first incident.

    Proven incidents come before those of statistics alone. Of checkpoints a search names the first
    corrupt one: a proof in between is nearer to the start.
    """
    found = newest_bracket(results)
    proven = [incident.opened for incident in incidents if incident.proven]
    if found is not None and found.first_corrupt is not None:
        after = -1 if found.last_clean is None else found.last_clean
        inside = [step for step in proven if after < step < found.first_corrupt]
        return min(inside, default=found.first_corrupt)
    return min(proven or [incident.opened for incident in incidents], default=None)
