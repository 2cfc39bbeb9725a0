"""What was compared: told at once of a small run, and later of a large one, which is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hand_made import Trace, clean_run

from app import counts, follow
from app.queries import counted
from sdc_guard.store.reader import RunReader
from sdc_guard.store.run_file import RunFile


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """What is looked for from second to second, instead of looking."""
    found: list[Callable[[], bool]] = []
    monkeypatch.setattr(counts, "follow", found.append)
    counts._counts_of.clear()
    return found


def wait_for(is_news: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_news():
        assert time.monotonic() < end, "no news"
        time.sleep(0.005)


def test_a_small_run_is_counted_at_once(tmp_path: Path, followed: list[Callable[[], bool]]) -> None:
    with RunReader(clean_run(tmp_path / "run")) as reader:
        found = counts.coverage(reader, "run", 1)
    assert (found.is_counted, found.digests, found.lags) == (True, 78, False)
    assert followed == []


def test_a_large_one_is_counted_apart_and_the_page_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: list[Callable[[], bool]]
) -> None:
    monkeypatch.setattr(counts, "_AT_ONCE", 0)
    with RunReader(clean_run(tmp_path / "run")) as reader:
        first = counts.coverage(reader, "run", 1)
        assert (first.is_counted, first.digests) == (False, 0)
        assert len(followed) == 1
        wait_for(followed.pop())
        found = counts.coverage(reader, "run", 1)
        assert (found.is_counted, found.digests) == (True, 78)
        assert followed == []


def test_an_older_count_stands_and_is_followed_until_the_next_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: list[Callable[[], bool]]
) -> None:
    run = clean_run(tmp_path / "run")
    with RunReader(run) as reader:
        counts.coverage(reader, "run", 1)
        ((key, answer),) = counts._counts_of("run")._kept.items()
        slow = replace(answer, seconds=60.0, made=time.monotonic())
        counts._counts_of("run")._kept[key] = slow
        with Trace(run) as trace:
            trace.steps(41, 42)
        reader.refresh()
        later = counts.coverage(reader, "run", 2)
        assert (later.newest, later.counted_to, later.lags) == (42, 40, True)
        assert len(followed) == 1


def test_counts_of_a_run_are_not_those_of_one_that_was_started_again(
    tmp_path: Path, followed: list[Callable[[], bool]]
) -> None:
    run = clean_run(tmp_path / "run")
    with RunReader(run) as reader:
        assert counts.coverage(reader, "run", 1).digests == 78
    file = RunFile.read(run)
    replace(file, attempts=(replace(file.attempts[0], started=7.0),)).write(run)
    with Trace(run) as trace:
        trace.steps(41, 41)
    with RunReader(run) as reader:
        # the same version by chance: what was counted before is of another start
        assert counts.coverage(reader, "run", 1).digests == counted(reader).digests > 78


@pytest.mark.parametrize("news", [True, False])
def test_a_page_is_run_again_when_there_is_news(
    monkeypatch: pytest.MonkeyPatch, news: bool
) -> None:
    said: list[object] = []

    def fragment(*, run_every: float) -> Callable[[Callable[[], None]], Callable[[], None]]:
        said.append(run_every)
        return lambda look: look

    monkeypatch.setattr(
        follow, "st", SimpleNamespace(fragment=fragment, rerun=lambda: said.append("again"))
    )
    follow.follow(lambda: news)
    assert said == ([1.0, "again"] if news else [1.0])
