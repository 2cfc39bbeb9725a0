"""Small messages between ranks: real stores, a thread for each rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from sdc_guard.checks import across_ranks
from sdc_guard.checks.across_ranks import Exchange, InBackground, SameValue, Told
from sdc_guard.ranks import Ranks

WORLD = 3


@pytest.fixture(params=["tcp", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "file":
        yield dist.FileStore(str(tmp_path / "store"), 1)
    else:
        yield dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20), wait_for_workers=False)


def ranks_of(store: Any, tmp_path: Path) -> list[Ranks]:
    """The ranks of a run, as they are after init_process_group."""
    found = []
    for rank in range(WORLD):
        one = Ranks(tmp_path / "run")
        one.rank, one.world_size, one._store = rank, WORLD, store
        one._key = "sdc_guard/run/1"  # each in a process of its own has the same
        found.append(one)
    return found


def on_all(do: Callable[[int], None], ranks: range = range(WORLD)) -> None:
    threads = [threading.Thread(target=do, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in vain is waited for briefly."""
    monkeypatch.setattr(across_ranks, "_SHORT", 0.05)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def joined(given: dict[int, bytes]) -> bytes:
    return b"|".join(given[rank] for rank in sorted(given))


def test_all_ranks_get_the_answer_of_what_all_gave(store: Any) -> None:
    got: dict[int, bytes | None] = {}

    def one(rank: int) -> None:
        exchange = Exchange(store.clone(), "key", rank)
        got[rank] = exchange.round("r", bytes([rank, 0, 255]), range(WORLD), joined)
        assert not exchange.silent

    on_all(one)
    assert set(got.values()) == {b"\0\0\xff|\1\0\xff|\2\0\xff"}


def test_a_round_of_some_ranks_that_rank_0_only_answers(store: Any) -> None:
    got: dict[int, bytes | None] = {}

    def one(rank: int) -> None:
        exchange = Exchange(store.clone(), "key", rank)
        mine = bytes([rank]) if rank else None
        got[rank] = exchange.round("r", mine, [1, 2], joined)

    on_all(one)
    assert set(got.values()) == {b"\1|\2"}


def test_a_silent_rank_costs_its_patience_once(store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(across_ranks, "PATIENCE", 0.4)
    monkeypatch.setattr(across_ranks, "_SHORT", 0.02)
    took, silent = [], []

    def one(rank: int) -> None:
        exchange = Exchange(store.clone(), "key", rank)
        for name in "ab":
            started = time.monotonic()
            assert exchange.round(name, b"%d" % rank, range(WORLD), joined) == b"0|1"
            if rank == 0:
                took.append(time.monotonic() - started)
                silent.append(set(exchange.silent))

    on_all(one, range(2))
    assert silent == [{2}, {2}]
    assert took[1] < 0.4 <= took[0]


def test_a_rank_that_speaks_again_is_heard(store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(across_ranks, "PATIENCE", 0.1)
    exchange = Exchange(store, "key", 0)
    assert exchange.round("a", b"0", range(2), joined) == b"0"
    store.set("key/b/1", b"1")
    assert exchange.round("b", b"0", range(2), joined) == b"0|1"
    assert exchange.silent == set()


def test_without_an_answer_of_rank_0_there_is_none(store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(across_ranks, "PATIENCE", 0.1)
    exchange = Exchange(store, "key", 1)
    assert exchange.round("a", b"1", range(2), joined) is None
    assert exchange.silent == {0}


def test_the_store_does_not_grow(store: Any) -> None:
    exchange, sizes = Exchange(store, "key", 0), []
    for number in range(9):
        exchange.next_job()
        exchange.round(str(number), b"0", [0], joined)
        sizes.append(store.num_keys())
    assert sizes[3:] == [sizes[3]] * 6


@pytest.mark.parametrize("values", [(7, 7, 7), (7, -1, 7)])
def test_one_value_of_all_ranks(store: Any, tmp_path: Path, values: tuple[int, ...]) -> None:
    same = [SameValue(ranks, "probe") for ranks in ranks_of(store, tmp_path)]
    for step in (0, 5):
        for one, value in zip(same, values, strict=True):
            one.tell(step, value)
    for one in same:
        found: list[Told] = []
        until(lambda one=one, found=found: found.extend(one.told()) or len(found) == 2)  # type: ignore[misc]
        expected = {rank: value % 2**64 for rank, value in enumerate(values)}
        assert found == [Told(step, expected, ()) for step in (0, 5)]
        assert one.close() == []


def test_closing_does_not_wait_for_ever(store: Any, tmp_path: Path) -> None:
    one = SameValue(ranks_of(store, tmp_path)[0], "probe")
    one.tell(3, 1)
    started = time.monotonic()
    assert one.close(1.0) == [Told(3, {0: 1}, (1, 2))]
    assert time.monotonic() - started < 10


def test_what_is_pending_at_the_end_is_finished(store: Any, tmp_path: Path) -> None:
    same = [SameValue(ranks, "probe") for ranks in ranks_of(store, tmp_path)]
    for one in same:
        one.tell(1, 4)
    closed: dict[int, list[Told]] = {}
    on_all(lambda rank: closed.update({rank: same[rank].close()}))
    assert [closed[rank] for rank in range(WORLD)] == [
        [Told(1, dict.fromkeys(range(3), 4), ())]
    ] * 3


def test_a_store_that_is_gone_ends_the_thread_alone(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20), wait_for_workers=False)
    ranks = ranks_of(server, tmp_path)[1]
    thread: InBackground[Any] = InBackground(ranks, "name")
    thread.do(lambda _: "connected")
    until(lambda: thread.results() == ["connected"])
    ranks._store = "not None"
    del server

    thread.do(lambda exchange: exchange.round("a", b"1", range(2), joined))
    until(lambda: thread.trouble is not None)
    assert isinstance(thread.trouble, RuntimeError)
    thread.do(lambda _: None)  # refused, and no error
    assert thread.left_out == 1
    assert thread.close() == []


def test_more_jobs_than_are_done_are_left_out(store: Any, tmp_path: Path) -> None:
    thread: InBackground[int] = InBackground(ranks_of(store, tmp_path)[0], "name")
    go_on = threading.Event()
    for number in range(1012):
        thread.do(lambda _, number=number: number if go_on.wait(20) else -1)  # type: ignore[misc]
    go_on.set()
    assert thread.close() == list(range(1000))
    assert thread.left_out == 12
