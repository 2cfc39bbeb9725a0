"""Sessions as sequences of commands: the bracket is never lost, whatever is said in which order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searched import Table, checkpoints, searched

from forensics.bracket import find_bracket_of
from forensics.checkpoint import Checkpoint
from forensics.oracles.judged_before import AmongOthers
from forensics.oracles.judgement import Judgement
from forensics.search.asked import Asked, Noise
from forensics.sessions.standing import (
    Standing,
    chosen,
    contradiction,
    name_of,
    out_of_order,
    standing,
)
from forensics.sessions.state import Entry, State, event_of
from sdc_guard.errors import ArchiveIncomplete, SdcGuardError, UsageError

COUNT = 12
CANDIDATES = checkpoints([100 * (i + 1) for i in range(COUNT)])
HERE = Path()
WORDS = {"good": "clean", "bad": "corrupt", "untestable": "untestable"}
COMMANDS = st.lists(
    st.tuples(st.sampled_from([*WORDS, "skip", "undo"]), st.integers(0, COUNT - 1)), max_size=30
)
OPTIONS = st.sampled_from(
    [
        Asked(),
        Asked(scan=True),
        Asked(first_good=True),
        Asked(skip=(300, 400)),
        Asked(good=200, bad=1100),
        Asked(good=200, bad=1100, trust_ends=True),
        Asked(noise=Noise(0.05, 0.2)),
    ]
)


def said(place: int, word: str) -> Entry:
    judgement = None if word == "skip" else Judgement(WORDS[word], word)  # type: ignore[arg-type]
    return Entry(CANDIDATES[place].step, CANDIDATES[place].path.as_posix(), judgement)


def at(state: State) -> Standing:
    return standing(state, HERE, CANDIDATES)


@given(OPTIONS, COMMANDS)
def test_any_order_of_commands_keeps_the_bracket(
    asked: Asked, commands: list[tuple[str, int]]
) -> None:
    state, history = State("", asked), []
    for word, place in commands:
        before = at(state)
        if word == "undo":
            state = state.after({"event": "undo"})
            history = history[:-1]
        elif contradiction(before, CANDIDATES[place], WORDS.get(word)) is None:  # type: ignore[arg-type]
            state = state.after(event_of(said(place, word)))
            history.append((word, place))
        current = at(state)
        following = current.following()
        said_last = {place: word for word, place in history}
        if asked.noise is None:
            _holds(current, {CANDIDATES[p].step: word for p, word in said_last.items()})
        if following is not None:
            assert said_last.get(CANDIDATES.index(following)) is None
            assert current.left() >= 1
        else:
            assert current.left() == 0
            try:
                result = current.result()
            except ArchiveIncomplete:
                words = set(said_last.values())
                assert not words & {"good", "bad"}
            else:
                assert result.exit_code in (0, 1, 3, 5)
        out_of_order(current)
    # what was taken back leaves no trace
    plain = State("", asked)
    for word, place in history:
        plain = plain.after(event_of(said(place, word)))
    assert at(plain) == at(state)


def _holds(current: Standing, words: dict[int, str]) -> None:
    """The bracket by a model of its own: what was said last of each step."""
    words = {**words}
    for place, verdict in current.part.trusted.items():
        step = current.part.candidates[place].step
        words.setdefault(step, "good" if verdict == "clean" else "bad")
    lower, upper = ("bad", "good") if current.asked.first_good else ("good", "bad")
    high = min((step for step, word in words.items() if word == upper), default=None)
    lows = [s for s, word in words.items() if word == lower and (high is None or s < high)]
    assert current.bracket() == (max(lows, default=None), high)


@pytest.mark.parametrize("seed", range(5))
def test_following_the_advice_finds_what_run_finds(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(10):
        count = rng.randrange(2, 60)
        edge = rng.randrange(count + 1)
        untestable = set(rng.sample(range(count), rng.randrange(min(4, count))))
        pattern = "".join("u" if i in untestable else "gb"[i >= edge] for i in range(count))
        _follow(pattern, rng)


def _follow(pattern: str, rng: random.Random) -> None:
    """Judge as asked, in commands of their own, with a slip that is taken back now and then."""
    words = {"g": "clean", "b": "corrupt", "u": "untestable"}
    judge = Table({(i + 1) * 100: words[one] for i, one in enumerate(pattern)})  # type: ignore[misc]
    candidates = checkpoints(list(judge.verdicts))
    state = State("", Asked())
    asked: list[int] = []
    while (following := standing(state, HERE, candidates).following()) is not None:
        for undo in [True] * (rng.random() < 0.2) + [False]:
            verdict = judge.verdicts[following.step]
            if undo:
                verdict = "clean" if verdict == "corrupt" else "corrupt"
            judgement = Judgement(verdict, f"is {verdict}")
            event = event_of(Entry(following.step, following.path.as_posix(), judgement, "table"))
            state = state.after(event)
            if undo:
                state = state.after({"event": "undo"})
        asked.append(following.step)
        assert len(asked) == len(set(asked))
        assert len(asked) <= ceil(log2(len(pattern))) + 2 + pattern.count("u")
    try:
        expected = searched(judge)
    except ArchiveIncomplete:
        assert set(pattern) == {"u"}
        return
    assert asked == judge.asked
    assert standing(state, HERE, candidates).result().as_dict() == expected.as_dict()


def _stopped_after(judge: Table, number: int, asked: Asked) -> tuple[Entry, ...]:
    """What a search keeps that ends after so many judgings."""
    kept: list[Entry] = []

    class Keeps:
        folder = Path("nowhere")

        def judging(self, one: object) -> None:
            if len(kept) == number:
                raise KeyboardInterrupt

        def judged(self, one, judgement, seconds) -> None:  # type: ignore[no-untyped-def]
            kept.append(Entry(one.step, one.path.as_posix(), judgement, judge.name))

        def stopped(self, reason: str) -> None:
            assert reason == "interrupted"

    part = standing(State("", asked), HERE, checkpoints(list(judge.verdicts))).part
    with pytest.raises(SdcGuardError):
        find_bracket_of(part, (), judge, Keeps(), lambda _: None, asked)
    return tuple(kept)


@pytest.mark.parametrize(
    "asked",
    [Asked(), Asked(scan=True), Asked(repeat=3), Asked(noise=Noise(0.05, 0.2)), Asked(skip=(400,))],
    ids=str,
)
@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(asked: Asked, number: int) -> None:
    pattern = "ggguugggggggggbbbbbb"
    words = {"g": "clean", "b": "corrupt", "u": "untestable"}
    verdicts = {(i + 1) * 100: words[one] for i, one in enumerate(pattern)}
    whole = Table(verdicts)  # type: ignore[arg-type]
    expected = searched(whole, asked)
    entries = _stopped_after(Table(verdicts), number, asked)  # type: ignore[arg-type]
    assert [one.step for one in entries] == whole.asked[:number]
    rest = Table(verdicts)  # type: ignore[arg-type]
    state = State("", asked, entries=entries)
    found = standing(state, HERE, checkpoints(list(verdicts)))
    result = find_bracket_of(found.part, found.known, rest, None, lambda _: None, asked)
    assert rest.asked == whole.asked[number:]
    assert result.as_dict() == expected.as_dict()


def test_what_others_judged_proves_no_more_than_they_do() -> None:
    exact = Table({}, proves=True, persists=True)
    assert AmongOthers(exact, ["table"]).proves
    assert AmongOthers(exact, []).persists
    for others in (["user"], ["table", "command"]):
        mixed = AmongOthers(exact, others)
        assert (mixed.proves, mixed.persists) == (False, False)


def test_what_an_oracle_proved_it_proves_from_the_journal_too() -> None:
    proving = {"by": "trace"}
    entries = [said(0, "good"), said(11, "bad"), *(said(p, "good") for p in range(1, 11))]
    by_trace = State("", Asked(), entries=tuple(replace(one, **proving) for one in entries))
    assert at(by_trace).result().proven
    mixed = replace(by_trace, entries=(*by_trace.entries[:-1], entries[-1]))
    assert not at(mixed).result().proven
    # a judge that proves judges all before it says that nothing is corrupt; here some are not
    nothing = State(
        "", Asked(), entries=tuple(replace(said(p, "good"), **proving) for p in (0, 11))
    )
    assert at(nothing).following() is None
    assert any("is not seen" in line for line in at(nothing).result().evidence)


def test_ends_that_were_given_are_judged_first_and_not_turned_round() -> None:
    state = State("", Asked(good=200, bad=1000))
    assert at(state).following() == CANDIDATES[9]
    assert contradiction(at(state), CANDIDATES[9], "clean") is not None
    assert contradiction(at(state), CANDIDATES[9], "untestable") is None
    outside = contradiction(at(state), CANDIDATES[11], "clean")
    assert outside is not None
    assert "200 to 1000" in outside
    trusting = at(State("", Asked(good=200, bad=1000, trust_ends=True)))
    assert trusting.following() == CANDIDATES[5]
    assert contradiction(trusting, CANDIDATES[9], None) is not None


def test_bad_before_good_is_asked_about() -> None:
    state = State("", Asked(), entries=(said(7, "good"), said(2, "bad")))
    assert "swapped?" in (out_of_order(at(state)) or "")
    known = State("", Asked(), entries=(said(0, "good"), *state.entries))
    assert (out_of_order(at(known)) or "").startswith("not monotone")
    assert out_of_order(at(State("", Asked(first_good=True), entries=state.entries))) is None


def test_a_step_that_several_have_is_chosen_by_name() -> None:
    twice = checkpoints([100, 200])
    twice.append(type(twice[0])(200, Path("b/last"), "torch", "untested"))
    assert chosen("100", HERE, twice) == twice[0]
    assert chosen("b/last", HERE, twice) == chosen("last", HERE, twice) == twice[2]
    with pytest.raises(UsageError, match="name one: step-200, b/last"):
        chosen("200", HERE, twice)
    for text, what in (("300", "there is 100, 200"), ("x", "no checkpoint 'x'")):
        with pytest.raises(UsageError, match=what):
            chosen(text, HERE, twice)


def test_checkpoints_that_are_gone_or_new_change_what_is_next_not_what_is_known() -> None:
    state = State("", Asked(), entries=(said(0, "good"), said(11, "bad"), said(5, "good")))
    fewer: Sequence = [one for i, one in enumerate(CANDIDATES) if i != 5]
    assert standing(state, HERE, fewer).bracket() == (100, 1200)
    more = [*CANDIDATES, *checkpoints([1300])]
    assert standing(state, HERE, more).bracket() == (600, 1200)
    assert standing(state, HERE, more).following() == at(state).following()


def test_checkpoints_of_one_name_outside_of_the_archive_are_told_apart(tmp_path: Path) -> None:
    archive = tmp_path / "run"
    paths = [tmp_path / "ck" / str(step) / "model.pt" for step in (100, 200, 300)]
    outside = [Checkpoint(int(one.parent.name), one, "torch", "untested") for one in paths]
    names = [name_of(one, archive) for one in outside]
    assert names == [str(path) for path in paths]
    said_bad = Entry(200, names[1], Judgement("corrupt", "bad"))
    known = standing(State("", Asked(), entries=(said_bad,)), archive, outside).known
    assert [(place, one.verdict) for place, one, _ in known] == [(1, "corrupt")]
    assert chosen(str(paths[2]), archive, outside) == outside[2]
    with pytest.raises(UsageError, match="several checkpoints are named model"):
        chosen("model.pt", archive, outside)
