"""Where judgings run: what is done is kept, whatever happens to the rest."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from searched import searched, table

from forensics.checkpoint import Checkpoint
from forensics.executors.executor import Executor, WorkerLost
from forensics.executors.local import Local
from forensics.executors.on_ray import OnRay
from forensics.oracles.judgement import Judgement
from sdc_guard.errors import CommandFailed, Interrupted, UsageError


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_each_item_gets_its_answer(jobs: int) -> None:
    assert dict(Local(jobs).run(lambda item: item * 2, range(7))) == {i: 2 * i for i in range(7)}


def test_so_many_run_at_once() -> None:
    together = threading.Barrier(3)

    def wait(_: int) -> bool:
        together.wait(timeout=30)  # breaks unless three are there
        return True

    assert all(answer for _, answer in Local(3).run(wait, range(3)))


def test_what_one_raises_comes_after_the_answers_of_the_others() -> None:
    def call(item: int) -> int:
        if item == 0:
            raise CommandFailed("broken")
        return item

    running = Local(2).run(call, range(5))
    assert sorted(item for item, _ in islice(running, 4)) == [1, 2, 3, 4]
    with pytest.raises(CommandFailed, match="broken"):
        next(running)


def test_ctrl_c_keeps_what_is_done_and_stops_the_rest() -> None:
    stopped = threading.Event()
    first = threading.Event()

    def call(item: int) -> int:
        if item == 0:
            first.set()
            return item
        stopped.wait(timeout=30)
        return item

    running = Local(2, stopped.set).run(call, [0, 1])
    assert next(running) == (0, 0)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert stopped.is_set()


def test_to_close_a_round_stops_what_runs() -> None:
    stopped = threading.Event()

    def call(item: int) -> int:
        if item:
            stopped.wait(timeout=30)
        return item

    running = Local(2, stopped.set).run(call, [0, 1])
    next(running)
    running.close()
    assert stopped.is_set()


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_interrupted_search_says_what_is_known(jobs: int) -> None:
    judge = table("gggggbbbb")

    def stops(checkpoint: Checkpoint) -> Judgement:
        if len(judge.asked) == 2:
            raise KeyboardInterrupt
        return type(judge).judge(judge, checkpoint)

    judge.judge = stops  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match=r"after 2 judgings, clean: 100; corrupt: 900") as caught:
        searched(judge, executor=Local(1) if jobs == 1 else _Rounds(jobs))
    assert caught.value.exit_code == 130


class _Rounds:
    """Several a round, one after the other: Ctrl-C reaches the main thread only."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def run(self, call: Callable[[int], Any], items: Any) -> Any:
        for item in items:
            yield item, call(item)


def test_parallel_and_serial_searches_agree() -> None:
    executors: list[Executor] = [Local(), Local(4)]
    found = [searched(table("g" * 33 + "u" + "b" * 30), executor=one) for one in executors]
    assert found[0].as_dict() | {"probes": []} == found[1].as_dict() | {"probes": []}


def test_ray_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="--executor ray needs Ray, which is not installed"):
        OnRay(3)


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:  # bound, and not listening: nobody else can take the port
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # kept from what OnRay sets
        with pytest.raises(UsageError, match=r"no Ray cluster: .*refused"):
            OnRay(2)


class _Loses:
    """Where the worker that judges the second place of a round ends."""

    jobs = 2

    def run(self, call: Callable[[int], Any], items: Any) -> Any:
        yield items[0], call(items[0])
        raise WorkerLost(items[1], "WorkerCrashedError")


def test_a_worker_that_ends_is_no_evidence_and_stops_the_search() -> None:
    with pytest.raises(CommandFailed, match=r"a worker ended while it judged step 100: Worker"):
        searched(table("gggggbbbb"), executor=_Loses())
