"""Who is silent while a checkpoint is written, by one's own clock and by the store alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from sdc_guard.archive.sharded.beats import Beating, Listening
from sdc_guard.archive.sharded.meeting import Arrival, Meeting, NotSaved
from sdc_guard.archive.sharded.protocol import _Rank, write_part


class Client:
    """A client of a store, for one caller."""

    def __init__(self, store: HashStore, gone: threading.Event) -> None:
        self._store, self._gone = store, gone

    def __getattr__(self, name: str) -> Any:
        if self._gone.is_set():
            raise RuntimeError("connection reset by peer")
        return getattr(self._store, name)


class Ranks:
    """Ranks in one process, with a clock that is set by hand."""

    def __init__(self, size: int = 4) -> None:
        self.now, self.gone = 100.0, threading.Event()
        store = HashStore()
        self.meetings = [
            Meeting(rank, size, lambda: Client(store, self.gone), lambda name: name)
            for rank in range(size)
        ]

    def listening(self, rank: int) -> Listening:
        return Listening(self.meetings[rank], 1, 60.0, 5.0, lambda: self.now)

    def beat(self, count: int, *ranks: int) -> None:
        for rank in ranks:
            self.meetings[rank].beat(1, count)

    def later(self, seconds: float, *listening: Listening) -> None:
        """Time passes, with a look each five seconds."""
        for _ in range(round(seconds / 5)):
            self.now += 5.0
            for one in listening:
                one.check(range(len(self.meetings)))


def test_who_has_not_beaten_for_so_long_is_named() -> None:
    ranks = Ranks()
    one = ranks.listening(0)
    for count in range(15):
        ranks.beat(count, 1, *([2] if count < 4 else []), *([3] if count < 5 else []))
        ranks.later(5, one)
    with pytest.raises(NotSaved, match=r"^rank 2 has given no sign of life for 60 s"):
        ranks.later(5, one)
    with pytest.raises(NotSaved, match=r"^ranks 2, 3 have given no sign of life"):
        ranks.later(5, one)


def test_one_that_never_beat_is_silent_from_the_first_look() -> None:
    ranks = Ranks(2)
    one = ranks.listening(0)
    ranks.later(55, one)
    with pytest.raises(NotSaved, match="rank 1"):
        ranks.later(5, one)


def test_a_rank_is_given_up_after_two_minutes_and_looked_at_every_five_seconds() -> None:
    ranks = Ranks(2)
    one = Listening(ranks.meetings[0], 1, clock=lambda: ranks.now)
    ranks.later(115, one)
    with pytest.raises(NotSaved, match=r"^rank 1 has given no sign of life for 120 s"):
        ranks.later(5, one)
    # what every save is written with
    assert write_part.__kwdefaults__ == {"silence": 120.0, "every": 5.0}


def test_the_store_is_not_asked_more_often_than_ranks_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, asked = Ranks(2), []
    one = ranks.listening(0)
    monkeypatch.setattr(ranks.meetings[0], "beats", lambda *_: asked.append(ranks.now) or {})
    for _ in range(100):
        ranks.now += 0.25
        one.check([1])
    assert asked == [105.0, 110.0, 115.0, 120.0, 125.0]


def test_who_is_not_asked_about_is_not_waited_for() -> None:
    ranks = Ranks(3)
    one = ranks.listening(0)
    for count in range(40):
        ranks.beat(count, 1)
        ranks.now += 5.0
        one.check([0, 1])


def test_a_pause_of_all_is_nobodys_silence() -> None:
    ranks = Ranks(2)
    one = ranks.listening(0)
    ranks.beat(1, 1)
    ranks.later(5, one)
    ranks.now += 3600.0
    one.check([1])  # awake before the other one
    ranks.beat(2, 1)
    ranks.later(55, one)
    with pytest.raises(NotSaved):
        ranks.later(10, one)


def test_a_store_that_is_gone_took_rank_0_with_it_and_no_other() -> None:
    ranks = Ranks(2)
    first, second = ranks.listening(0), ranks.listening(1)
    ranks.beat(1, 0, 1)
    ranks.later(5, first, second)
    ranks.gone.set()
    ranks.beat(2, 0, 1)
    ranks.later(600, first)
    ranks.now -= 600.0
    ranks.later(55, second)
    with pytest.raises(NotSaved, match="rank 0"):
        ranks.later(5, second)


def part_of(folder: Path) -> Any:
    """A rank's part of the first save, as far as it is looked at before anything is written."""
    return SimpleNamespace(number=1, folder=folder, archive=folder.parent)


def test_a_rank_that_waits_for_rank_0_gives_it_up_by_name_and_beats_meanwhile(
    tmp_path: Path,
) -> None:
    ranks = Ranks(3)  # of which rank 2 is silent, too, and not what is waited for
    done = write_part(
        part_of(tmp_path / "none"), ranks.meetings[1], dict, 60.0, silence=0.2, every=0.02
    )
    assert done.folder is None
    assert done.error.startswith("rank 0 has given no sign of life for 0.2 s")
    assert int((ranks.meetings[0].beats(1, [1]) or {})[1]) > 1


def test_a_rank_that_waits_for_the_outcome_gives_rank_0_up(tmp_path: Path) -> None:
    ranks, end = Ranks(2), time.monotonic() + 60.0
    one = _Rank(part_of(tmp_path / "none"), ranks.meetings[1], dict, end, 0.2, 0.02)
    with pytest.raises(NotSaved, match="rank 0 has given no sign of life"):
        one._told()


def test_beats_of_saves_long_ago_are_taken_out_of_the_store() -> None:
    store = HashStore()
    meetings = [Meeting(rank, 2, lambda: store, lambda name: name) for rank in range(2)]
    for step in range(1, 5):
        other = threading.Thread(target=meetings[1].agree, args=(Arrival(step, step, 1), 60.0))
        other.start()
        meetings[0].agree(Arrival(step, step, 1, save=f"s{step}"), 60.0)
        other.join()
        for one in meetings:
            one.beat(step, 1)
    kept = [store.check([f"checkpoint/{step}/beat/1"]) for step in range(1, 5)]
    assert kept == [False, False, True, True]


def test_where_all_share_one_client_nobody_listens() -> None:
    store = HashStore()
    meeting = Meeting(0, 2, lambda: store, lambda name: name)
    with Beating(meeting, 1, 0.01):
        assert not store.check(["checkpoint/1/beat/0"])
    now = iter(range(0, 10_000, 10))
    one = Listening(meeting, 1, 60.0, 5.0, lambda: float(next(now)))
    for _ in range(100):
        one.check([1])


def test_a_thread_beats_as_long_as_it_is_asked_to() -> None:
    ranks = Ranks(2)
    before = threading.active_count()
    with Beating(ranks.meetings[1], 1, 0.01):
        end = time.monotonic() + 10.0
        while int((ranks.meetings[0].beats(1, [1]) or {}).get(1, "0")) < 3:
            assert time.monotonic() < end
            time.sleep(0.005)
    assert threading.active_count() == before
