"""Answers that take long: a page never waits for a second one, and no more are made than needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.standing import Answer, Standing


class Questions:
    """Answers by number that take `takes` seconds of a clock of their own."""

    def __init__(self, takes: float) -> None:
        self.now = 0.0
        self.takes = takes
        self.made = 0
        self.standing: Standing[int] = Standing(2, clock=lambda: self.now)

    def _make(self) -> int:
        self.now += self.takes
        self.made += 1
        return self.made

    def of(self, version: int, key: str = "a", *, at_once: bool = True) -> int | None:
        answer = self.standing.of(key, version, self._make, at_once=at_once)
        return None if answer is None else answer.value


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.001)


def test_what_is_quick_is_made_for_each_version_and_once() -> None:
    asked = Questions(0.1)
    assert [asked.of(n) for n in (1, 1, 2, 2, 3)] == [1, 1, 2, 2, 3]


def test_what_took_long_stands_for_twenty_times_as_long_and_until_the_next_is_there() -> None:
    asked = Questions(10.0)
    assert asked.of(1) == 1
    asked.now += 199.0
    assert asked.of(2) == 1
    assert asked.made == 1
    asked.now += 2.0
    assert asked.of(3) == 1  # and the next one is being made
    wait_until(lambda: asked.of(3) == 2)
    assert asked.made == 2


def test_without_waiting_there_is_none_at_first_and_news_later() -> None:
    go = threading.Event()
    standing: Standing[str] = Standing(2)

    def make() -> str:
        assert go.wait(60)
        return "made"

    assert standing.of("a", 1, make, at_once=False) is None
    assert standing.of("a", 1, make, at_once=False) is None
    assert not standing.news("a", 1, make, None)
    go.set()
    wait_until(lambda: standing.news("a", 1, make, None))
    found = standing.of("a", 1, make, at_once=False)
    assert isinstance(found, Answer)
    assert found.value == "made"
    assert not standing.news("a", 1, make, found)


class Noted:
    """A module `time` that notes how long somebody sleeps, and lets nobody sleep."""

    def __init__(self, order: list[object]) -> None:
        self.sleep = order.append


def test_an_answer_that_nobody_waits_for_is_made_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[object] = []
    monkeypatch.setattr("app.standing.time", Noted(order))
    standing: Standing[None] = Standing(2, pause=7.5)
    standing.of("a", 1, lambda: order.append("a"), at_once=True)
    assert order == ["a"]
    assert standing.of("b", 1, lambda: order.append("b"), at_once=False) is None
    wait_until(lambda: len(order) == 3)
    assert order == ["a", 7.5, "b"]


def test_what_is_due_is_made_also_when_nobody_runs_the_page_again() -> None:
    asked = Questions(10.0)
    asked.of(1)
    shown = asked.standing.of("a", 2, asked._make, at_once=True)
    assert shown is not None
    assert not asked.standing.news("a", 2, asked._make, shown)
    assert asked.made == 1
    asked.now += 200.0
    wait_until(lambda: asked.standing.news("a", 2, asked._make, shown))
    assert asked.made == 2


def test_a_failure_is_told_to_who_asks_next_and_tried_again() -> None:
    standing: Standing[str] = Standing(2)

    def fail() -> str:
        raise ValueError("no such file")

    assert standing.of("a", 1, fail, at_once=False) is None
    wait_until(lambda: standing.news("a", 1, fail, None))
    with pytest.raises(ValueError, match="no such file"):
        standing.of("a", 1, fail, at_once=False)
    found = standing.of("a", 1, lambda: "there", at_once=True)
    assert found is not None
    assert found.value == "there"


def test_the_answer_asked_for_longest_ago_goes_first() -> None:
    asked = Questions(0.1)
    assert [asked.of(1, key) for key in "abaca"] == [1, 2, 1, 3, 1]
    assert asked.of(1, "b") == 4


def test_eight_that_ask_at_once_have_one_answer_made() -> None:
    standing: Standing[int] = Standing(2)
    start, made = threading.Barrier(8), []

    def make() -> int:
        made.append(1)
        time.sleep(0.05)
        return len(made)

    def ask(_: int) -> int:
        start.wait(60)
        found = standing.of("a", 1, make, at_once=True)
        assert found is not None
        return found.value

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [1] * 8
