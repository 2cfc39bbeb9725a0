"""`sdc-bisect log`: what was judged by whom, as text that `sdc-bisect replay` takes in again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final

from sdc_guard.errors import UsageError
from sdc_guard.shown import shown

from ..oracles.judgement import Judgement
from ..search import Verdict
from .lines import Unreadable, parse, why
from .mark import Mark
from .state import USER, Entry, State, asked_of, folded

HEAD: Final = "# sdc-bisect log, version 1"
_WORDS: Final[dict[Verdict, str]] = {"clean": "good", "corrupt": "bad", "untestable": "untestable"}
_VERDICTS: Final[dict[str, Verdict]] = {word: verdict for verdict, word in _WORDS.items()}
_SKIP: Final = "skip"
_SHOWN: Final = 60  # characters of what cannot be read in a message
_DIGITS: Final = 19  # of a step


def log_text(state: State) -> str:
    """A session as text, a line per judging."""
    steps = Counter({entry.step: 0 for entry in state.entries})
    for _, step in {(entry.name, entry.step) for entry in state.entries}:
        steps[step] += 1
    lines = [HEAD, f"# archive: {ascii(state.archive)[1:-1]}"]
    if state.undone:
        lines.append(f"# taken back since: {state.undone}")
    lines.append(_line("start", _start(state)))
    lines += [_entry_line(entry, steps[entry.step] > 1) for entry in state.entries]
    return "\n".join(lines) + "\n"


def read_log(content: bytes, where: str) -> tuple[State, list[str]]:
    """The session of a log, or of a journal, and what of it cannot be read.

    Of the entries of a log that was written by hand only step and verdict need to be there; the
    name of the checkpoint is then "".

    Raises:
        UsageError: it is neither, or nothing of its beginning can be read.
    """
    if content.lstrip().startswith(b"{"):
        return _read_journal(content, where)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise _no_log("it is no text", where) from None
    state = State("", asked_of({}))
    for number, line in enumerate(text.splitlines(), 1):
        try:
            parts = _words(line)
            if parts and parts[0] == "start":
                state = _started(_pairs(parts[1:]))
            elif parts:
                state = replace(state, entries=(*state.entries, _entry(parts)))
        except Unreadable as error:
            raise _no_log(f"line {number} cannot be read: {error}", where) from None
        except (ValueError, KeyError, TypeError, OverflowError):
            what = f"line {number} cannot be read: {shown(line[:_SHOWN])!r}"
            raise _no_log(what, where) from None
    return state, []


def _read_journal(content: bytes, where: str) -> tuple[State, list[str]]:
    lines = parse(content)
    left = [f"line {number} cannot be read and is left out" for number in lines.damaged]
    if lines.torn is not None:
        left.append("the last line was cut short and is left out")
    events = list(lines.events)
    while events:
        try:
            return folded(events), left
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if events[0]["event"] != "start":
                break
            # the events that fit together, from the first on
            bad = next(i for i in range(len(events)) if not _fits(events[: i + 1]))
            if bad == 0:
                raise _no_log(f"its start cannot be read: {why(error)}", where) from None
            left.append(f"line {lines.numbers[bad]} says nothing and is left out")
            del events[bad]
    raise _no_log("its first line does not start a session", where)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        raise Unreadable("a quotation mark without its second one") from None


def _fits(events: Sequence[Mapping[str, Any]]) -> bool:
    try:
        folded(events)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return True


def _no_log(what: str, where: str) -> UsageError:
    return UsageError(
        f"no log of a session: {what}",
        where=where,
        next_step="`sdc-bisect log > FILE` writes one; a line of it is `good 300` or `bad 500`",
    )


def _start(state: State) -> dict[str, Any]:
    """The options that are not the usual ones."""
    usual = asdict(asked_of({}))
    content = {key: one for key, one in asdict(state.asked).items() if one != usual[key]}
    if state.attempt is not None:
        content["attempt"] = state.attempt
    return content


def _started(pairs: Mapping[str, Any]) -> State:
    options = dict(pairs)
    attempt = options.pop("attempt", None)
    if attempt is not None and not isinstance(attempt, int):
        raise Unreadable("attempt is no number")
    asked = asked_of(options)
    if not all(isinstance(step, int | None) for step in (asked.good, asked.bad)):
        raise Unreadable("good and bad are steps, which are whole numbers")
    return State("", asked, attempt)


def _entry_line(entry: Entry, ambiguous: bool) -> str:
    told = entry.judgement
    content: dict[str, Any] = {"by": entry.by}
    when = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    content["at"] = when
    if ambiguous:
        content["checkpoint"] = entry.name
    if entry.seconds is not None:
        content["seconds"] = round(entry.seconds, 3)
    if told is not None:
        content["reason"] = told.reason
        if told.stored_bytes:
            content["stored_bytes"] = True
        if told.watched is not None:
            content["watched"] = told.watched
    if entry.mark is not None and entry.mark.content is not None:
        content["content"] = entry.mark.content
    word = _SKIP if told is None else _WORDS[told.verdict]
    return _line(f"{word} {entry.step}", content)


def _entry(parts: Sequence[str]) -> Entry:
    """An entry; the content of what was judged is the only thing known of its mark."""
    word = parts[0]
    if word != _SKIP and word not in _VERDICTS:
        raise Unreadable(f"{word[:_SHOWN]!r} is none of {', '.join([*_VERDICTS, _SKIP])}, start")
    if len(parts) < 2:
        raise Unreadable(f"which step is {word}?")
    if not parts[1].removeprefix("-").isdecimal() or len(parts[1].removeprefix("-")) > _DIGITS:
        raise Unreadable(f"{parts[1][:_SHOWN]!r} is no step, which is a whole number")
    step, pairs = int(parts[1]), _pairs(parts[2:])
    by = str(pairs.get("by", USER))
    judgement = None
    if word != _SKIP:
        verdict = _VERDICTS[word]
        watched = pairs.get("watched")
        judgement = Judgement(
            verdict,
            str(pairs.get("reason", "as the log says")),
            pairs.get("stored_bytes") is True,
            None if watched is None else _number("watched", watched),
        )
    seconds, content, when = pairs.get("seconds"), pairs.get("content"), pairs.get("at")
    at = 0.0 if when is None else _moment(str(when))
    return Entry(
        step,
        str(pairs.get("checkpoint", "")),
        judgement,
        by,
        at,
        None if seconds is None else _number("seconds", seconds),
        None if content is None else Mark(0, 0, "", str(content)),
    )


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{key} is no number")
    return float(value)


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise Unreadable(f"at={text[:_SHOWN]!r} is no time, as 2026-11-30T14:42:03Z is") from None


def _line(start: str, content: Mapping[str, Any]) -> str:
    return " ".join([start, *(f"{key}={_quoted(value)}" for key, value in content.items())])


def _quoted(value: Any) -> str:
    """Plain texts as they are; what JSON would read as something else, and others, as JSON."""
    if isinstance(value, str) and _value(value) == value:
        # a line break would end the entry
        return shlex.quote(value) if value.isprintable() else shlex.quote(json.dumps(value))
    return shlex.quote(json.dumps(value))


def _pairs(parts: Iterable[str]) -> dict[str, Any]:
    pairs = {}
    for part in parts:
        key, sign, value = part.partition("=")
        if not sign:
            raise Unreadable(f"{part[:_SHOWN]!r} is no KEY=VALUE")
        pairs[key] = _value(value)
    return pairs


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
