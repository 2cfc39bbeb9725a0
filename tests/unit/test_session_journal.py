"""The journal of a session: what is read of it wherever its writer was killed, and as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.oracles.judgement import Judgement
from forensics.search.asked import Asked, Noise
from forensics.sessions.lines import parse
from forensics.sessions.log_text import log_text, read_log
from forensics.sessions.mark import Mark
from forensics.sessions.state import Entry, State, event_of, folded, start_event
from sdc_guard.errors import UsageError

TEXT = st.text(max_size=20)
JUDGEMENTS = st.builds(
    Judgement,
    st.sampled_from(["clean", "corrupt", "untestable"]),
    TEXT,
    st.booleans(),
    st.none() | st.floats(0, 1),
)
ENTRIES = st.builds(
    Entry,
    step=st.integers(-(2**62), 2**62),
    name=TEXT.filter(bool),
    judgement=st.none() | JUDGEMENTS,
    by=TEXT,
    at=st.integers(0, 2**31).map(float),
    seconds=st.none() | st.integers(0, 10**6).map(lambda n: n / 1000),
)
STEPS = st.none() | st.integers(0, 10**6)
ASKED = st.builds(
    Asked,
    skip=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    good=STEPS,
    bad=STEPS,
    trust_ends=st.booleans(),
    first_good=st.booleans(),
    scan=st.booleans(),
    noise=st.none() | st.builds(Noise, st.none() | st.just(0.05), st.none(), st.booleans()),
    confidence=st.sampled_from([0.9, 0.95]),
)
STATES = st.builds(
    State,
    archive=TEXT,
    asked=ASKED,
    attempt=st.none() | st.integers(1, 9),
    entries=st.lists(ENTRIES, max_size=5).map(tuple),
)


def written(state: State) -> bytes:
    events = [start_event(state), *map(event_of, state.entries)]
    return "".join(json.dumps(event) + "\n" for event in events).encode()


@given(STATES, st.data())
def test_wherever_the_writer_was_killed_every_whole_line_counts(
    state: State, data: st.DataObject
) -> None:
    content = written(state)
    assert folded(parse(content).events) == state
    cut = data.draw(st.integers(0, len(content)))
    lines = parse(content[:cut])
    whole = content[:cut].count(b"\n")
    rest = content[:cut].rpartition(b"\n")[2]
    assert not lines.damaged
    complete = content[cut : cut + 1] == b"\n"  # only the line break is missing
    assert len(lines.events) == whole + (complete and bool(rest))
    assert (lines.torn is not None) == (bool(rest) and not complete)
    # what the next writer keeps of it, and goes on after
    assert parse(content[: lines.sound] + b"\n").events == lines.events


@given(STATES.filter(lambda state: len(state.entries) > 1), st.data())
def test_damage_before_the_last_line_is_told_by_number(state: State, data: st.DataObject) -> None:
    lines = written(state).splitlines()
    number = data.draw(st.integers(1, len(lines) - 1))
    lines[number - 1] = data.draw(st.sampled_from([b"{", b"\0\0", b"[]", b"\xff", b'{"a": 1}']))
    assert parse(b"\n".join(lines) + b"\n").damaged == (number,)


def test_two_damaged_last_lines_are_no_torn_write() -> None:
    found = parse(b'{"event": "start"}\n{"ev\n{"ev')
    assert (found.damaged, found.torn) == ((2, 3), None)


@given(STATES)
def test_a_log_says_all_that_counts(state: State) -> None:
    again, left = read_log(log_text(state).encode(), "log")
    assert not left
    assert (again.asked, again.attempt) == (state.asked, state.attempt)
    steps: dict[int, set[str]] = {}
    for entry in state.entries:
        steps.setdefault(entry.step, set()).add(entry.name)
    for entry, one in zip(state.entries, again.entries, strict=True):
        assert one.name == (entry.name if len(steps[entry.step]) > 1 else "")
        assert (one.step, one.judgement, one.by, one.at, one.seconds) == (
            (entry.step, entry.judgement, entry.by, entry.at, entry.seconds)
        )


@given(STATES.filter(lambda state: len(state.entries) > 1), st.data())
def test_a_damaged_journal_is_taken_in_but_for_its_damage(
    state: State, data: st.DataObject
) -> None:
    lines = written(state).splitlines()
    number = data.draw(st.integers(2, len(lines) - 1))
    lines[number - 1] = data.draw(st.sampled_from([b"{", b'{"event": "probe"}', b"\0"]))
    again, left = read_log(b"\n".join(lines), "journal")
    assert again.entries == state.entries[: number - 2] + state.entries[number - 1 :]
    assert len(left) == 1
    assert f"line {number}" in left[0]


def test_a_log_by_hand_needs_words_and_steps_only() -> None:
    text = b"# mine\ngood 100\n\nbad 300 by=you content=blake2b:00 # sure\nskip 200\nuntestable 5\n"
    state, _ = read_log(text, "log")
    assert state.asked == Asked()
    assert [(one.step, one.by) for one in state.entries] == [
        (100, "user"),
        (300, "you"),
        (200, "user"),
        (5, "user"),
    ]
    verdicts = [None if x.judgement is None else x.judgement.verdict for x in state.entries]
    assert verdicts == ["clean", "corrupt", None, "untestable"]
    assert state.entries[1].mark == Mark(0, 0, "", "blake2b:00")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"fine 100\n", "line 1"),
        (b"good\n", "line 1"),
        (b"good 100\nbad x\n", "line 2"),
        (b"good 100 reason\n", "line 1"),
        (b"start good=abc\n", "line 1"),
        (b"start lazy=true\n", "line 1"),
        (b"good 1 at=yesterday\n", "line 1"),
        (b"good 1 'open\n", "line 1"),
        (b"\xff\xfe", "no text"),
        (b'{"event": "probe"}\n', "first line"),
        (b'{"event": "start", "version": 2}\n', "version 2"),
        (b"{", "first line"),
    ],
)
def test_what_is_no_log_is_said_in_one_line(content: bytes, what: str) -> None:
    with pytest.raises(UsageError, match=what) as raised:
        read_log(content, "search.log")
    assert raised.value.where == "search.log"
    assert "\n" not in str(raised.value)


def test_reasons_with_line_breaks_stay_in_their_line(tmp_path: Path) -> None:
    entry = Entry(1, "x", Judgement("corrupt", "a\nbad 2\x1b[2J"))
    text = log_text(State(str(tmp_path), Asked(), entries=(entry,)))
    assert len(text.splitlines()) == 4
    assert "\x1b" not in text
    assert [one.judgement for one in read_log(text.encode(), "")[0].entries] == [entry.judgement]
