"""Which ways between places are wrong: a table, and not one verdict for all."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.selftest.between_ranks import received, table_of
from sdc_guard.selftest.copies import ADVICE, fitting, judged, with_sizes
from sdc_guard.selftest.line import Outcome
from sdc_guard.selftest.patterns import KB, MB, PATTERNS, SIZES, Damage, sent
from sdc_guard.selftest.ways import every_way, there_and_back

Way = tuple[int, int]
Spoil = Callable[[torch.Tensor], None]


class Places:
    """Places in host memory, some ways between which change what they carry."""

    def __init__(self, spoiled: dict[Way, Spoil], to: dict[int, Spoil] | None = None) -> None:
        self._spoiled, self._to = spoiled, to or {}

    def put(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        return self._changed(tensor, self._to.get(place))

    def copy(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        return self._changed(tensor, self._spoiled.get((source, target)))

    def fetch(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        return tensor.clone()

    def _changed(self, tensor: torch.Tensor, spoil: Spoil | None) -> torch.Tensor:
        tensor = tensor.clone()
        if spoil is not None:
            spoil(tensor)
        return tensor


def to_nan(tensor: torch.Tensor) -> None:
    tensor[3] = math.nan


def to_zeros(tensor: torch.Tensor) -> None:
    tensor[: tensor.numel() // 2] = 0.0


def other_nan(tensor: torch.Tensor) -> None:
    """Another payload, of what is a NaN already."""
    words = tensor.view(torch.int32)
    words[tensor.isnan()] ^= 1


EIGHT = [f"cuda:{n}" for n in range(8)]


def test_the_pair_that_is_wrong_is_named_and_no_other() -> None:
    table = every_way(Places({(0, 1): to_nan}), EIGHT, [4 * KB])
    assert table.wrong == [(0, 1)]
    assert not table.ways[6, 7]
    outcome = judged(table)
    assert outcome.verdict == "FAIL"
    assert "cuda:0 to cuda:1" in outcome.reason
    assert "cuda:6" not in outcome.reason
    assert ADVICE in outcome.reason
    assert "one known cause" in outcome.reason
    (wrong,) = outcome.detail["wrong"]
    # what was a NaN before is not counted as one that came to be
    nan_before = sum(np.isnan(sent(p, 4 * KB)[3].item()) for p in PATTERNS)
    assert (wrong["from"], wrong["to"]) == ("cuda:0", "cuda:1")
    assert wrong["nan"] == len(PATTERNS) - nan_before
    cells = [row.split() for row in outcome.table]
    assert cells[0] == ["from\\to", *EIGHT]
    assert cells[1][2] == "WRONG"
    assert [row[1:].count("WRONG") for row in cells[1:]] == [1] + [0] * 7


def test_a_place_that_is_wrong_by_itself_is_no_matter_of_ways() -> None:
    table = every_way(Places({}, to={2: to_zeros}), EIGHT[:3], [4 * KB])
    assert table.wrong == [(2, 0), (2, 1), (2, 2)]
    assert table.wrong_between == []
    assert ADVICE not in judged(table).reason


def test_a_nans_payload_that_changes_on_the_way_is_seen() -> None:
    table = every_way(Places({(1, 0): other_nan}), EIGHT[:2], [4 * KB])
    assert table.wrong == [(1, 0)]
    assert table.ways[1, 0].nan == 0  # they were NaN before
    assert "ones, 4 KB" in (table.ways[1, 0].tries or {})


def test_sound_ways_pass() -> None:
    outcome = judged(every_way(Places({}), EIGHT[:2], [4 * KB, MB]))
    assert (outcome.verdict, outcome.table) == ("PASS", ())
    assert there_and_back(Places({}), {0: "host"}, [4 * KB]).wrong == []
    assert there_and_back(Places({}, to={0: to_zeros}), {0: "host"}, [4 * KB]).wrong == [(0, 1)]


@given(st.sampled_from(sorted(PATTERNS)), st.integers(0, 1023), st.integers(0, 31))
def test_one_bit_of_any_pattern_is_seen(pattern: str, index: int, bit: int) -> None:
    tensor = sent(pattern, 4 * KB, 3)
    arrived = tensor.clone()
    arrived.view(torch.int32)[index] ^= -(1 << 31) if bit == 31 else 1 << bit
    damage = Damage()
    damage.note("x", tensor, tensor.clone())
    assert not damage
    damage.note("x", tensor, arrived)
    assert (damage.words, damage.tries) == (1, {"x": 1})


def test_what_arrives_in_another_shape_is_wrong() -> None:
    damage = Damage()
    damage.note("x", torch.zeros(4), torch.zeros(3))
    assert damage.words == 4


def test_words_that_change_places_are_seen() -> None:
    tensor = sent("counting", 4 * KB, 0)
    damage = Damage()
    damage.note("x", tensor, tensor.roll(1))
    assert damage.words == 1024


@pytest.mark.parametrize("free", [0, 30 * MB, 100 * MB, 10_000 * MB])
def test_too_little_memory_is_said_and_is_no_pass(free: int) -> None:
    sizes = fitting(free)
    outcome = with_sizes(Outcome("PASS", "all arrived"), sizes)
    assert (outcome.verdict == "PASS") == (sizes == list(SIZES)) == (free == 10_000 * MB)
    assert with_sizes(Outcome("FAIL", "wrong"), sizes).verdict == "FAIL"


def on_ranks(world: int, spoiled: dict[Way, Spoil]) -> list[dict[int, Damage]]:
    """What each rank received, where ranks are threads and links are queues."""
    links: dict[Way, queue.Queue[torch.Tensor]] = {
        (a, b): queue.Queue() for a in range(world) for b in range(world)
    }
    found: dict[int, Any] = {}

    def swap(rank: int, tensor: torch.Tensor, target: int, source: int) -> torch.Tensor:
        carried = tensor.clone()
        if (rank, target) in spoiled:
            spoiled[rank, target](carried)
        links[rank, target].put(carried)
        return links[source, rank].get(timeout=20)

    def run(rank: int) -> None:
        found[rank] = received(rank, world, lambda *given: swap(rank, *given), [4 * KB])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(world)]


def test_a_table_of_rank_and_rank_names_the_pair() -> None:
    table = table_of(8, on_ranks(8, {(0, 1): to_nan}))
    assert table.wrong == [(0, 1)]
    assert len(table.ways) == 8 * 7
    outcome = table.outcome("over a queue")
    assert outcome.reason.startswith("wrong from rank 0 to rank 1: ")
    assert table_of(3, on_ranks(3, {})).wrong == []
