"""Step counters: what of two readings is wrong, how it is told, and what is read at all."""

from __future__ import annotations

import copy
import gc
import itertools
import struct
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sdc_guard.counter_alerts import counter_digest, digests_of
from sdc_guard.detect.counters import counter_alert, wrong_counters
from sdc_guard.digest import digest_tensor
from sdc_guard.signals import counters
from sdc_guard.signals.counters import CounterPair, StepCounters
from sdc_guard.signals.rotation import Rotation

COUNTS = st.integers(0, 2**24 - 2)


def bits_of(*values: float) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.array([struct.unpack("<I", struct.pack("<f", value))[0] for value in values], "u4")


@given(st.lists(COUNTS, min_size=1, max_size=9), st.data())
def test_counters_that_stay_or_grow_by_one_are_right(counts: list[int], data: Any) -> None:
    more = data.draw(st.lists(st.integers(0, 1), min_size=len(counts), max_size=len(counts)))
    after = [count + one for count, one in zip(counts, more, strict=True)]
    bits = np.stack([bits_of(*counts), bits_of(*after)])
    layers = tuple(range(len(counts)))
    assert wrong_counters(layers, bits, "float32", 1) == []
    grown = [layer for layer, one in zip(layers, more, strict=True) if one]
    found = wrong_counters(layers, bits, "float32", 0)
    assert [change.layer for change in found] == grown


@given(COUNTS, st.integers(0, 31), st.booleans())
def test_any_flipped_bit_is_found(count: int, bit: int, within: bool) -> None:
    due = bits_of(count + within)[0]
    flipped = int(due) ^ 1 << bit
    bits = np.array([bits_of(count), [flipped]], "u4")
    found = wrong_counters((7,), bits, "float32", int(within))
    if within and flipped == int(bits_of(count)[0]):
        assert found == []  # the update seems to have been left out, as a scaler may do
        return
    (change,) = found
    assert (change.layer, change.before, change.after) == (7, bits_of(count)[0], flipped)
    if not within:
        assert change.location()["bits"] == [bit]


@given(COUNTS, st.integers(0, 200), st.integers(2, 200), st.integers(0, 31))
def test_over_several_steps_growth_is_limited(count: int, more: int, steps: int, bit: int) -> None:
    after = min(count + min(more, steps), 2**24)  # where float32 stops to count
    flipped = int(bits_of(after)[0]) ^ 1 << bit
    value = struct.unpack("<f", struct.pack("<I", flipped))[0]
    bits = np.array([[bits_of(count)[0]] * 2, [bits_of(after)[0], flipped]], "u4")
    possible = value in range(count, count + steps + 1) and flipped != 1 << 31
    found = wrong_counters((5, 6), bits, "float32", steps)
    assert [change.layer for change in found] == ([] if possible else [6])


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_counters_of_other_dtypes_are_limited_too(dtype: str) -> None:
    bits = np.array([[5, 5, 5, 5, 5], [5, 9, 10, 4, 1 << 30]], dtype=dtype)
    found = wrong_counters((0, 1, 2, 3, 4), bits.view(f"u{bits.itemsize}"), dtype, 4)
    assert [change.layer for change in found] == [2, 3, 4]


def test_a_counter_told_of_once_may_go_on() -> None:
    flipped = bits_of(5.0)[0] ^ np.uint32(1)
    values = [np.array([flipped], "u4").view("f4")]
    for _ in range(40):  # rounds where the exponent grows
        values.append(values[-1] + np.float32(1))
    for steps in (1, 7, 40):
        bits = np.stack([values[0], values[steps]]).view("u4")
        assert wrong_counters((0,), bits, "float32", steps) == []


def test_a_counter_at_the_end_of_its_range_stays() -> None:
    bits = np.stack([bits_of(2.0**24), bits_of(2.0**24)])
    assert wrong_counters((0,), bits, "float32", 1) == []


def test_of_another_dtype_nothing_is_said_within_a_step() -> None:
    bits = np.array([[0x3F80], [0x4100]], dtype="u2")
    assert wrong_counters((0,), bits, "bfloat16", 1) == []
    assert len(wrong_counters((0,), bits, "bfloat16", 0)) == 1


def test_the_alert_of_an_impossible_update_has_both_numbers() -> None:
    bits = np.stack([bits_of(5.0), bits_of(1029.0)])
    (change,) = wrong_counters((3,), bits, "float32", 1)
    alert = counter_alert(40, change, "head.weight")
    assert "from 5 to 1029 within step 40" in alert.detail["text"]
    assert (alert.detector, alert.severity) == ("step_counter", "proven")


@given(st.integers(0, 2**32 - 1))
def test_a_counter_has_the_digest_of_its_tensor(bits: int) -> None:
    tensor = torch.tensor(bits - 2**32 if bits >= 2**31 else bits, dtype=torch.int32)
    assert counter_digest(bits) == digest_tensor(tensor.view(torch.float32))


def test_the_digests_of_both_moments_are_those_of_the_tensors() -> None:
    bits = np.stack([bits_of(5.0), bits_of(-5.0)])
    left, found = digests_of(wrong_counters((3,), bits, "float32", 0))
    assert left.keys == found.keys == (("step", 3),)
    for table, value in ((left, 5.0), (found, -5.0)):
        digest = digest_tensor(torch.tensor(value))
        assert [int(number) % 2**64 for number in table.rows[0]] == list(digest)


class Trained:
    """Three parameters, an optimizer, and its counters."""

    def __init__(self, budget: float | None = None, **options: Any) -> None:
        self.parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        self.optimizer = torch.optim.AdamW(self.parameters, **options)
        owned = [(10 + n, p, self.optimizer) for n, p in enumerate(self.parameters)]
        self.rotation = Rotation(budget)
        self.counters = StepCounters(owned, self.rotation)
        self.step()

    def step(self, within: int = 0) -> tuple[list[CounterPair], list[CounterPair]]:
        found = self.counters.find()
        for parameter in self.parameters:
            parameter.grad = torch.ones(2)
        self.optimizer.step()
        if within:
            self.state(1)["step"].view(torch.int32).bitwise_xor_(within)
        return found, self.counters.leave()

    def state(self, number: int) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state[self.parameters[number]]
        return state


def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have counters read as those of a device are."""
    monkeypatch.setattr(counters, "is_plain", lambda counter: False)


def wrong(pairs: list[CounterPair]) -> list[int]:
    found = []
    for pair in pairs:
        bits = np.asarray(pair.bits)
        unsigned = bits.view(f"u{bits.itemsize}")
        changes = wrong_counters(pair.layers, unsigned, pair.dtype, pair.steps)
        found += [change.layer for change in changes]
    return found


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_a_flip_is_found_in_its_layer(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    trained.state(1)["step"].view(torch.int32).bitwise_xor_(1 << 9)
    assert [wrong(pairs) for pairs in trained.step()] == [[11], []]
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_a_flip_within_a_step_is_found(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    assert [wrong(pairs) for pairs in trained.step(1 << 20)] == [[], [11]]
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]


def every_third_step(trained: Trained) -> None:
    """Have them read so often, whatever it takes."""
    asked = itertools.count()
    trained.rotation.counters_due = lambda: next(asked) % 3 == 0  # type: ignore[method-assign]
    trained.rotation.whole = False
    for _ in range(3):
        assert [wrong(pairs) for pairs in trained.step()] == [[], []]


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("bit", [3, 17, 24, 28, 30, 31])
def test_a_flip_between_readings_is_told_by_the_next(
    bit: int, device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    every_third_step(trained)
    steps = [trained.step(), trained.step()]
    trained.state(1)["step"].view(torch.int32).bitwise_xor_(1 << bit if bit < 31 else -(1 << 31))
    if bit == 31:  # torch itself raises at a negative counter
        trained.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    steps += [trained.step() for _ in range(3)]
    assert [[wrong(pairs) for pairs in step] for step in steps] == [
        [[], []],
        [[], []],
        [[], []],
        [[], [11]],
        [[], []],
    ]


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_counters_made_anew_between_readings_are_not_accused(
    device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    every_third_step(trained)
    for _ in range(6):
        trained.optimizer.state.clear()
        assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    trained.state(1)["step"].add_(100)
    told = [layer for _ in range(3) for pairs in trained.step() for layer in wrong(pairs)]
    assert told == [11]


def test_what_is_left_is_read_where_the_newest_step_was_not() -> None:
    trained = Trained()
    every_third_step(trained)
    trained.step()
    trained.step()
    bits = {layer: bits for layer, (_, bits) in trained.counters.left().items()}
    assert bits == dict.fromkeys((10, 11, 12), int(bits_of(6.0)[0]))


def test_a_state_that_the_script_drops_is_not_kept_alive() -> None:
    trained = Trained()
    trained.step()
    moment = weakref.ref(trained.state(1)["exp_avg"])
    trained.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
    gc.collect()
    assert moment() is None


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_what_is_left_has_its_bits(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    trained.step()
    left = trained.counters.left()
    assert {layer: bits for layer, (_, bits) in left.items()} == dict.fromkeys(
        (10, 11, 12), int(bits_of(2.0)[0])
    )
    assert left[11][0] is trained.state(1)["step"]


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_counters_in_other_memory_are_the_same_counters(
    device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        on_device(monkeypatch)
    trained = Trained()
    trained.optimizer.load_state_dict(trained.optimizer.state_dict())
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    trained.state(0)["step"] = trained.state(0)["step"] + 3
    trained.state(2)["step"].data = trained.state(2)["step"].data.clone()
    del trained.optimizer.state[trained.parameters[1]]
    assert [wrong(pairs) for pairs in trained.step()] == [[10], []]
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]


def test_counters_of_several_dtypes_are_read_each(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained()
    trained.state(0)["step"] = torch.tensor(1.0, dtype=torch.float64)
    trained.state(1)["step"] = torch.tensor(1, dtype=torch.int64)
    trained.step()
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    trained.state(0)["step"].view(torch.int64).bitwise_xor_(1 << 60)
    trained.state(1)["step"].bitwise_xor_(1 << 2)
    assert [sorted(wrong(pairs)) for pairs in trained.step()] == [[10, 11], []]


def test_an_optimizer_of_unknown_arithmetic_is_compared_between_steps_alone() -> None:
    class ByTwo(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step()
            for state in self.state.values():
                state["step"] += 1

    trained = Trained()
    owned = [(10 + n, p, trained.optimizer) for n, p in enumerate(trained.parameters)]
    trained.optimizer = ByTwo(trained.parameters)
    trained.counters = StepCounters(
        [(n, p, trained.optimizer) for n, p, _ in owned], Rotation(None)
    )
    trained.step()
    assert [wrong(pairs) for pairs in trained.step()] == [[], []]
    trained.state(2)["step"].view(torch.int32).bitwise_xor_(1)
    assert [wrong(pairs) for pairs in trained.step()] == [[12], []]


def test_a_state_that_loses_its_counter_is_no_error() -> None:
    trained = Trained()
    del trained.state(1)["step"]
    assert trained.counters.find() == []
    trained.state(2)["step"] = 3
    assert trained.counters.leave() == []
    assert set(trained.counters.left()) == {10}
