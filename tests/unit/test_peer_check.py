"""What ranks give each other of their gradients, and what the check costs and tells."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from peer_windows import NUMEL, logs, signals_of

from sdc_guard.checks import across_ranks
from sdc_guard.checks.peers.check import _BEHIND, PeerCheck
from sdc_guard.checks.peers.messages import (
    BYTES,
    MOST_BYTES,
    MOST_STREAMS,
    Measured,
    Share,
    packed,
    read,
    window_of,
)
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.peers import PeerJudge
from sdc_guard.ranks import Ranks

WORLD, LAYERS, EVERY = 3, 8, 10
NAMES = {100 + layer: f"layer {layer}" for layer in range(LAYERS)}
NUMBERS = np.array(sorted(NAMES), dtype=np.int32)
SIZES = np.full(LAYERS, NUMEL, dtype=np.int64)


class Heard:
    """What a check told."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.events: list[str] = []

    def report(self, alerts: list[Alert]) -> None:
        self.alerts += alerts

    def event(self, step: int, kind: str, detail: str) -> None:
        assert kind == "peers"
        self.events.append(detail)


class Rank:
    """One rank's check, fed by hand."""

    def __init__(self, folder: Path, rank: int, *, world: int = WORLD, store: bool = True) -> None:
        ranks = Ranks(folder / "run")
        ranks.rank, ranks.world_size, ranks._key = rank, world, "sdc_guard/run/1"
        if store:
            ranks._store = dist.FileStore(str(folder / "store"), 1)
        self.heard = Heard()
        self.check = PeerCheck(self.heard, lambda: NAMES, ranks, EVERY, 1e-4)

    def step(self, step: int, norms: NDArray[np.float64]) -> None:
        self.check.measured([step], NUMBERS, SIZES, signals_of(norms[None], step))
        self.check.step_ended(step)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in vain is waited for briefly."""
    monkeypatch.setattr(across_ranks, "_SHORT", 0.05)
    monkeypatch.setattr(across_ranks, "PATIENCE", 1.0)


def trained(
    folder: Path,
    norms: NDArray[np.float64],
    *,
    ranks: range = range(WORLD),
    first: Callable[[int], int] = lambda _: 0,
) -> list[Rank]:
    """All ranks at once, each in a thread; norms (steps, ranks, layers)."""
    found = [Rank(folder, rank) for rank in ranks]

    def run(one: Rank, rank: int) -> None:
        for step, row in enumerate(norms[:, rank]):
            while one.check._thread.waiting > 1 and one.check._thread._done.empty():
                time.sleep(0.001)
            one.step(first(rank) + step, row)
        one.check.close()

    threads = [threading.Thread(target=run, args=pair) for pair in zip(found, ranks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def test_the_rank_that_is_unlike_the_others_tells_of_itself(tmp_path: Path) -> None:
    norms = logs(1, 100, WORLD, LAYERS)
    norms[87, 1, 3] += 8
    ranks = trained(tmp_path, norms)
    assert [rank.heard.events for rank in ranks] == [[], [], []]
    assert (ranks[0].heard.alerts, ranks[2].heard.alerts) == ([], [])
    (alert,) = ranks[1].heard.alerts
    assert (alert.step, alert.layer, alert.layer_name) == (87, 103, "layer 3")
    assert (alert.detail["rank"], alert.detail["ranks"]) == (1, [0, 1, 2])


def test_the_last_steps_are_compared_at_the_end(tmp_path: Path) -> None:
    norms = logs(2, 95, WORLD, LAYERS)
    norms[94, 2, 0] += 8
    alerts = [rank.heard.alerts for rank in trained(tmp_path, norms)]
    assert [[alert.step for alert in of] for of in alerts] == [[], [], [94]]


def test_ranks_that_disagree_on_the_step_are_told_once_by_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    monkeypatch.setattr(PeerJudge, "judge", lambda _, steps, __: judged.extend(steps) or [])
    norms = logs(3, 40, WORLD, LAYERS)
    ranks = trained(tmp_path, norms, first=lambda rank: 500 if rank == 0 else 0)
    assert (ranks[1].heard.alerts, ranks[2].heard.alerts) == ([], [])
    (alert,) = ranks[0].heard.alerts
    assert alert.detector == "peer_steps"
    assert alert.detail["begins"] == {"0": 500, "1": 0, "2": 0}
    assert "rank 0 at 500; ranks 1, 2 at 0" in str(alert)
    assert judged == list(range(40))  # the two that are at one step


def test_a_rank_that_gives_nothing_is_passed_over_and_told_once(tmp_path: Path) -> None:
    norms = logs(4, 100, WORLD, LAYERS)
    norms[87, 1, 3] += 12
    ranks = trained(tmp_path, norms, ranks=range(2))
    assert ranks[0].heard.events == ["nothing to compare with came in time from rank 2"]
    (alert,) = ranks[0].heard.alerts  # of two that are left, none is named
    assert (alert.detail["rank"], alert.detail["ranks"]) == (None, [0, 1])
    assert (alert.step, alert.layer) == (87, 103)


def test_a_step_costs_nothing_while_the_others_are_silent(tmp_path: Path) -> None:
    one = Rank(tmp_path, 0)
    given, do = [], one.check._do
    one.check._do = lambda window: (given.append(window is not None), do(window))  # type: ignore[method-assign, assignment, return-value] # counts
    norms = logs(5, 1, 1, LAYERS)[0, 0]
    for step in range(3000):
        one.step(step, norms)
    assert len(given) == 1 + 3000 // EVERY
    assert sum(given) <= 2 * _BEHIND  # the others hold no measures
    started = time.monotonic()
    one.check.close()
    assert time.monotonic() - started < 8


def test_without_a_store_it_says_so_once(tmp_path: Path) -> None:
    one = Rank(tmp_path, 1, store=False)
    for step in range(3):
        one.step(step, np.zeros(LAYERS))
    one.check.close()
    (line,) = one.heard.events
    assert "torch.distributed was not initialised" in line


def test_a_window_comes_back_as_it_was_sent() -> None:
    norms = logs(6, 5, 1, LAYERS)[:, 0]
    norms[2, 3] = np.nan
    order = np.random.default_rng(6).permutation(LAYERS)
    parts = [
        Measured([20, 21], NUMBERS[order], SIZES, signals_of(norms[:2])),
        Measured([23, 24, 25], NUMBERS[order], SIZES, signals_of(norms[2:])),
    ]
    window = window_of(20, parts, Share(1, 1))
    content = packed(window)
    assert len(content) == 24 + 5 * 8 + LAYERS * 4 + 5 * LAYERS * BYTES
    got = read(content)
    assert (got.first, got.steps.tolist()) == (20, [20, 21, 23, 24, 25])
    assert got.layers.tolist() == NUMBERS.tolist()
    np.testing.assert_array_equal(got.values, window.values)
    back = got.values[:, 0, np.argsort(np.argsort(NUMBERS[order]))]
    np.testing.assert_allclose(back, norms, rtol=1e-6)
    part = window_of(20, parts, Share(layers=2, steps=5))
    assert (part.steps.tolist(), part.layers.tolist()) == ([20, 25], [100, 102, 104, 106])


def test_entirely_zero_and_not_finite_gradients_are_not_given() -> None:
    signals = signals_of(np.zeros((1, 3)))
    signals.norms[0, 0] = signals.max_abs[0, 0] = 0
    signals.zeros[0, 0] = NUMEL
    signals.nonfinite[0, 1] = 1
    measured = Measured([0], NUMBERS[:3], SIZES[:3], signals)
    (values,) = window_of(0, [measured], Share(1, 1)).values
    assert np.isnan(values[:, :2]).all()
    assert np.isfinite(values[:, 2]).all()


@given(st.binary(max_size=100), st.integers(-1, 2), st.integers(-1, 2))
def test_what_is_no_window_is_refused(content: bytes, steps: int, layers: int) -> None:
    for bytes_ in (content, struct.pack("<qqq", 0, steps, layers) + content):
        try:
            window = read(bytes_)
        except ValueError as error:
            assert "no window" in str(error)  # noqa: PT017 - because it need not be raised
        else:
            assert packed(window) == bytes_


@given(st.integers(2, 5000), st.integers(1, 20_000), st.integers(1, 1000))
def test_what_is_given_is_bounded(ranks: int, layers: int, every: int) -> None:
    share = Share.of(ranks, layers, every)
    taken, steps = -(-layers // share.layers), -(-every // share.steps)
    assert ranks * (taken - 1) <= MOST_STREAMS
    assert ranks * taken * (steps - 1) * BYTES <= MOST_BYTES
    if ranks * layers <= MOST_STREAMS and ranks * layers * every * BYTES <= MOST_BYTES:
        assert share.whole


def test_of_many_ranks_a_part_is_compared_and_that_is_told(tmp_path: Path) -> None:
    one = Rank(tmp_path, 0, world=60_000)
    for step in range(EVERY):
        one.step(step, np.zeros(LAYERS))
    assert str(Share.of(60_000, LAYERS, EVERY)) == "one layer in 8 and one step in 2"
    assert "of so many ranks and layers one layer in 8 and one step in 2 is compared" in (
        one.heard.events
    )
    one.check._thread.close(0.1)
