"""The values of a tensor on two of three ranks, over a real store."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from sdc_guard.checks.across_ranks import Exchange
from sdc_guard.checks.replicas import value_rounds
from sdc_guard.checks.replicas.value_rounds import compare_values
from sdc_guard.detect.replica_values import Compared, compare

SEED = 77


def compared(pair: tuple[int, int], values: dict[int, Any], dtype: str = "float32") -> Any:
    """What each rank gets; `values` are bytes."""
    found: dict[int, Compared | None] = {}
    path = str(Path(tempfile.mkdtemp()) / "store")

    def one(rank: int) -> None:
        exchange = Exchange(dist.FileStore(path, 1), "key", rank)
        mine = values[rank].tobytes() if rank in pair else None
        found[rank] = compare_values(exchange, "name", pair, mine, dtype)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in {0, *pair}]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == len(threads)
    assert len(set(found.values())) == 1, "all ranks know the same"
    return found[0]


def weights(count: int) -> np.ndarray:
    print(f"seed {SEED}")
    return np.random.default_rng(SEED).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("count", [5, 1024, 1025, 3_000_000])
def test_one_element_of_any_number_is_found(pair: tuple[int, int], count: int) -> None:
    one = weights(count)
    other = one.copy()
    other.view(np.uint32)[count - 2] ^= 1 << 25
    found = compared(pair, {pair[0]: one, pair[1]: other})
    assert found is not None
    assert (found.sort, found.differing, found.of) == ("corruption", 1, count)
    assert (found.index, found.bits) == (count - 2, [25])
    assert found.one == int(one.view(np.uint32)[count - 2])


def test_elements_in_several_blocks_are_those_of_the_whole() -> None:
    one = weights(131_072)
    other = one.copy()
    places = np.random.default_rng(SEED).choice(131_072, 15, replace=False)
    other[places] *= np.float32(1 + 1.4e-5)
    other[places[4]] *= np.float32(1 + 1e-5)  # the largest
    found = compared((0, 1), {0: one, 1: other})
    whole = compare(one.view(np.uint32), other.view(np.uint32), "float32")
    assert found is not None
    assert whole is not None
    assert (found.sort, found.differing, found.index) == ("drift", 15, places[4])
    assert (found.differing, found.of, found.index, found.largest, found.one, found.other) == (
        whole.differing, whole.of, whole.index, whole.largest, whole.one, whole.other,
    )  # fmt: skip


def test_what_differs_all_over_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_rounds, "_MOST_BYTES", 64 << 10)
    one = weights(1 << 20)
    found = compared((0, 1), {0: one, 1: one * np.float32(1 + 1e-5)})
    assert found is not None
    assert found.sort == "drift"
    assert found.of == 1 << 20
    assert 0.9 * (16 << 10) < found.differing <= 16 << 10


def test_values_that_cannot_be_had_or_are_equal_say_nothing() -> None:
    one = weights(10)
    none = np.empty(0, np.float32)
    assert compared((0, 1), {0: one, 1: none}) is None
    assert compared((1, 2), {1: none, 2: none}) is None
    assert compared((0, 1), {0: one, 1: one[:5]}) is None
    assert compared((0, 1), {0: one, 1: one}) is None
    assert compared((0, 1), {0: one, 1: one + 1}, "float8_e4m3fn") is None
