"""What a journal's events come to. Pure: no files, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, get_args

from ..oracles.judgement import Judgement
from ..search import Verdict
from ..search.asked import Asked, Noise
from .lines import Unreadable
from .mark import Mark

VERSION: Final = 1
USER: Final = "user"


@dataclass(frozen=True)
class Entry:
    """One judging, or that a checkpoint is not to be judged.

    Attributes:
        step: of the checkpoint.
        name: its path in the archive.
        judgement: what was said of it; None if it is to be skipped.
        by: who said it: "user", or the name of an oracle.
        at: when, in seconds since the epoch.
        seconds: that the judging took; None where a user judged.
        mark: of what was judged; None if it could not be taken.
    """

    step: int
    name: str
    judgement: Judgement | None
    by: str = USER
    at: float = 0.0
    seconds: float | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class Stage:
    """That a judge had its say before another one began.

    Attributes:
        over: the judge's name; what it said counts no more.
        low, high: steps of its last clean and of its first corrupt one; None without.
        said: what came of it, in words.
        skipped: steps that it could not judge.
    """

    over: str
    low: int | None = None
    high: int | None = None
    said: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """A session.

    Attributes:
        archive: path of what is searched, as it was given.
        asked: the search's options.
        attempt: of a guarded run, the attempt that was asked for.
        judge: of a session that `run` made: the oracle's name and command; else None.
        began: seconds since the epoch.
        entries: what counts, in its order.
        undone: how many were taken back.
        stages: judges that had their say.
        passed: what those judged, which counts no more; a stage holds while their marks do.
    """

    archive: str
    asked: Asked
    attempt: int | None = None
    judge: tuple[str, ...] | None = None
    began: float = 0.0
    entries: tuple[Entry, ...] = ()
    undone: int = 0
    stages: tuple[Stage, ...] = ()
    passed: tuple[Entry, ...] = ()

    def stage(self, judge: str) -> Stage | None:
        """That this judge had its say; None if it did not."""
        return next((one for one in self.stages if one.over == judge), None)

    def only(self, judge: str) -> State:
        """What one judge said, and what is not to be judged."""
        kept = (x for x in self.entries if x.judgement is None or x.by == judge)
        return replace(self, entries=tuple(kept))

    def after(self, event: Mapping[str, Any]) -> State:
        """The session after one more event; one that is not known changes nothing.

        Raises:
            KeyError, TypeError, ValueError: the event lacks what belongs to it.
        """
        kind = event["event"]
        if kind in ("probe", "skip"):
            return replace(self, entries=(*self.entries, entry_of(event)))
        if kind == "undo":
            undone = self.undone + bool(self.entries)
            return replace(self, entries=self.entries[:-1], undone=undone)
        if kind == "changed":
            left = (x for x in self.entries if x.name != event["checkpoint"] or not x.judgement)
            # nor what a stage came to: its judge is asked anew
            return replace(self, entries=tuple(left), stages=(), passed=())
        if kind == "stage":
            stage = stage_of(event)
            over = [x for x in self.entries if x.by == stage.over and x.judgement is not None]
            left = (x for x in self.entries if x.by != stage.over or x.judgement is None)
            return replace(
                self,
                entries=tuple(left),
                stages=(*self.stages, stage),
                passed=(*self.passed, *over),
            )
        if kind == "touched":
            mark = Mark.of_dict(event["mark"])
            name = str(event["checkpoint"])
            return replace(
                self,
                entries=_marked(self.entries, name, mark),
                passed=_marked(self.passed, name, mark),
            )
        return self


def _marked(entries: Iterable[Entry], name: str, mark: Mark | None) -> tuple[Entry, ...]:
    return tuple(replace(x, mark=mark) if x.name == name else x for x in entries)


def begun(event: Mapping[str, Any]) -> State:
    """The session that a journal's first event begins.

    Raises:
        KeyError, TypeError, ValueError: it does not begin one, or one of a later version.
    """
    if event["event"] != "start":
        raise Unreadable("the first line is no start")
    if event["version"] != VERSION:
        raise Unreadable(f"version {event['version']}, not {VERSION}")
    judge, attempt = event.get("judge"), event.get("attempt")
    return State(
        archive=str(event["archive"]),
        asked=asked_of(event["asked"]),
        attempt=None if attempt is None else int(attempt),
        judge=None if judge is None else tuple(map(str, judge)),
        began=float(event.get("at", 0)),
    )


def start_event(state: State) -> dict[str, Any]:
    """The first event of a session."""
    return {
        "event": "start",
        "version": VERSION,
        "archive": state.archive,
        "asked": asdict(state.asked),
        "attempt": state.attempt,
        "judge": None if state.judge is None else list(state.judge),
        "at": state.began,
    }


def asked_of(stored: Mapping[str, Any]) -> Asked:
    """The search's options as they are stored."""
    usual = {one.name: one.default for one in fields(Asked)}
    for name, value in stored.items():
        if name not in usual:
            raise Unreadable(f"{str(name)[:60]!r} is no option of a search")
        if not _fits(value, usual[name]):
            raise Unreadable(f"the value of {name!r} cannot be one")
    noise = stored.get("noise")
    content = {
        **stored,
        "skip": tuple(map(int, stored.get("skip", ()))),
        "noise": None if noise is None else Noise(**noise),
    }
    return Asked(**content)


def _fits(value: Any, usual: Any) -> bool:
    """Whether a stored value is of the kind that the usual one of an option is of."""
    if isinstance(usual, bool):
        return isinstance(value, bool)
    if isinstance(usual, tuple):
        return isinstance(value, list | tuple) and all(type(one) is int for one in value)
    if usual is None:  # a step, or what is known of noise
        return value is None or type(value) is int or isinstance(value, dict)
    number = float if isinstance(usual, float) else int
    return isinstance(value, int | number) and not isinstance(value, bool)


def event_of(entry: Entry) -> dict[str, Any]:
    """An entry as the journal's event."""
    told = entry.judgement
    content: dict[str, Any] = {"event": "skip" if told is None else "probe"}
    content |= {"step": entry.step, "checkpoint": entry.name, "by": entry.by}
    if told is not None:
        content |= {"verdict": told.verdict, "reason": told.reason}
        if told.stored_bytes:
            content["stored_bytes"] = True
        if told.watched is not None:
            content["watched"] = told.watched
        if entry.mark is not None:
            content["mark"] = entry.mark.as_dict()
    if entry.seconds is not None:
        content["seconds"] = round(entry.seconds, 3)
    return {**content, "at": entry.at}


def entry_of(event: Mapping[str, Any]) -> Entry:
    """The entry of a journal's event.

    Raises:
        KeyError, TypeError, ValueError: the event lacks what belongs to it.
    """
    seconds, watched = event.get("seconds"), event.get("watched")
    judgement = None
    if event["event"] == "probe":
        judgement = Judgement(
            verdict_of(event["verdict"]),
            str(event["reason"]),
            bool(event.get("stored_bytes", False)),
            None if watched is None else float(watched),
        )
    return Entry(
        step=int(event["step"]),
        name=str(event["checkpoint"]),
        judgement=judgement,
        by=str(event.get("by", USER)),
        at=float(event.get("at", 0)),
        seconds=None if seconds is None else float(seconds),
        mark=Mark.of_dict(event.get("mark")),
    )


def stage_of(event: Mapping[str, Any]) -> Stage:
    """The stage of a journal's event.

    Raises:
        KeyError, TypeError, ValueError: the event lacks what belongs to it.
    """
    low, high = event.get("low"), event.get("high")
    return Stage(
        str(event["over"]),
        None if low is None else int(low),
        None if high is None else int(high),
        tuple(map(str, event.get("said", ()))),
        tuple(map(int, event.get("skipped", ()))),
    )


def verdict_of(text: object) -> Verdict:
    """A verdict by its name.

    Raises:
        ValueError: there is none of that name.
    """
    for verdict in get_args(Verdict):
        if verdict == text:
            return verdict  # type: ignore[no-any-return]
    raise Unreadable(f"{text!r} is no verdict")


def folded(events: Iterable[Mapping[str, Any]]) -> State:
    """The session of a whole journal. Raises as `begun` and `State.after`."""
    state: State | None = None
    for event in events:
        state = begun(event) if state is None else state.after(event)
    if state is None:
        raise Unreadable("it is empty")
    return state
