"""The operation on a tensor's words: the asked ones, nothing else, and back again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from device_waits import Waits, fake_device
from hypothesis import example, given, settings
from hypothesis import strategies as st
from injected_words import Elements, expected, faults, storage, tensors, width_of

from sdc_guard.errors import InjectionError
from sdc_guard.inject import operation
from sdc_guard.inject.device_plan import DevicePlan
from sdc_guard.inject.fault import Draw, Fault, Touched
from sdc_guard.inject.operation import CERTAIN, LOG_COLUMNS, PLAN_COLUMNS, corrupt_by_torch, due
from sdc_guard.inject.planned import plan_fault

DRAW = Draw(3, "weight", 0, 0)


def plan_of(tensor: torch.Tensor, *those: Fault) -> DevicePlan:
    planned = [plan_fault(x, number, tensor, DRAW, "w") for number, x in enumerate(those)]
    return DevicePlan(planned, tensor.dtype, tensor.device, "w")


def at(step: int) -> torch.Tensor:
    return torch.tensor(step)


@settings(max_examples=400)
@given(data=st.data())
def test_exactly_what_is_asked_changes_and_reverts_to_the_same_bits(data: st.DataObject) -> None:
    tensor = data.draw(tensors())
    planned = [data.draw(faults(tensor, step)) for step in range(data.draw(st.integers(1, 3)))]
    sound = storage(tensor)
    plan = plan_of(tensor, *planned)
    memory, told = bytearray(sound), []
    for step in (-1, 0, 1, 2, 3):
        for number, fault in enumerate(planned):
            if fault.step == step:
                told.append((number, expected(memory, tensor, fault)))
        plan.apply(tensor, at(step))
        assert storage(tensor) == memory
    hits = plan.hits()
    for number, touched in told:
        assert hits[number].touched == tuple(Touched(*word) for word in touched)
        assert (hits[number].fired, hits[number].last_step) == (1, number)
    assert plan.revert(tensor) == ()
    assert storage(tensor) == sound


@settings(max_examples=50)
@given(data=st.data())
def test_what_was_written_to_since_is_left_alone(data: st.DataObject) -> None:
    tensor = data.draw(tensors())
    memory = storage(tensor)
    plan = plan_of(tensor, data.draw(faults(tensor, 5)))
    plan.apply(tensor, at(5))
    word = data.draw(st.sampled_from(plan.hits()[0].touched))
    bit = data.draw(st.integers(0, 7))
    plan_of(tensor, Fault("weight", 6, index=word.index, bit=bit)).apply(tensor, at(6))
    where = Elements(tensor).slice(word.index)
    memory[where] = (word.after ^ 1 << bit).to_bytes(where.stop - where.start, "little")
    assert plan.revert(tensor) == (word.index,)
    assert storage(tensor) == memory


def test_a_fault_that_changes_no_bit_is_told_as_well() -> None:
    tensor = torch.tensor([0.0, 1.0])
    plan = plan_of(tensor, Fault("weight", 0, index=0, change="zero"))
    plan.apply(tensor, at(0))
    hit = plan.hits()[0]
    assert hit.touched == (Touched(0, 0, 0),)
    assert plan.revert(tensor) == ()


@pytest.mark.parametrize("bit", [15, 31, 63])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_the_highest_bit_of_a_transposed_tensor(dtype: torch.dtype, bit: int) -> None:
    base = torch.arange(6).reshape(2, 3).to(dtype)
    tensor = base.t()
    fault = Fault("weight", 0, index=(2, 1), bit=bit)
    if bit >= width_of(dtype):
        with pytest.raises(InjectionError, match=f"bit {bit} is outside w of {dtype}"):
            plan_of(tensor, fault)
        return
    plan = plan_of(tensor, fault)
    plan.apply(tensor, at(0))
    (word,) = plan.hits()[0].touched
    assert (word.index, word.bits) == (5, [bit])
    if dtype.is_floating_point and bit == width_of(dtype) - 1:
        assert base[1, 2] == -5


def test_a_scalar_an_empty_plan_and_an_empty_tensor() -> None:
    scalar = torch.tensor(1.0, dtype=torch.bfloat16)
    plan_of(scalar, Fault("step", 0, bit=15)).apply(scalar, at(0))
    assert scalar == -1
    nothing = DevicePlan([], torch.float32, torch.device("cpu"))
    nothing.apply(torch.ones(3), at(0))
    assert nothing.hits() == {}
    assert nothing.revert(torch.ones(3)) == ()
    plan = plan_of(torch.ones(4), Fault("weight", 0, index=3, bit=0))
    plan.apply(torch.ones(0), at(0))
    plan.apply(torch.ones(3), at(0))  # a smaller one than was planned for: it has no element 3
    assert plan.hits()[0].fired == 0


def test_autograd_does_not_see_it() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    version = weight._version
    plan_of(weight, Fault("weight", 0, index=1, bit=31)).apply(weight, at(0))
    assert weight.tolist() == [1, -1, 1]
    assert weight._version == version


# from the reference implementation of SplitMix64, seed 1234567
SPLITMIX = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
    16408922859458223821,
]  # fmt: skip


def test_draws_are_those_of_splitmix64() -> None:
    plan = torch.zeros((1, PLAN_COLUMNS), dtype=torch.int64)
    plan[0, operation.LAST], plan[0, operation.KEY] = 100, 1234567
    for step, number in enumerate(SPLITMIX):
        plan[0, operation.CHANCE] = number >> 2
        assert not due(plan, at(step), 1)
        plan[0, operation.CHANCE] = (number >> 2) + 1
        assert due(plan, at(step), 1)


@example(key=0, step=0)
@given(key=st.integers(-(2**63), 2**63 - 1), step=st.integers(0, 2**62))
def test_certain_and_never(key: int, step: int) -> None:
    plan = torch.zeros((2, PLAN_COLUMNS), dtype=torch.int64)
    plan[:, operation.LAST], plan[:, operation.KEY] = 2**63 - 1, key
    plan[0, operation.CHANCE] = CERTAIN
    assert due(plan, at(step), 1).tolist() == [True, False]


def test_an_intermittent_fault_fires_as_often_as_asked_and_all_its_words_together() -> None:
    tensor = torch.zeros(2, 16)
    fault = Fault(
        "weight", 100, index=16, bit=0, pattern="row", recurrence="intermittent", probability=0.2
    )
    plan = plan_of(tensor, fault)
    fired = []
    for step in range(1600):
        before = tensor[1, 0].item()
        plan.apply(tensor, at(step))
        assert len(set(tensor[1].tolist())) == 1
        if tensor[1, 0].item() != before:
            fired.append(step)
    assert fired[0] >= 100
    assert (plan.hits()[0].fired, plan.hits()[0].last_step) == (len(fired), fired[-1])
    assert abs(len(fired) - 300) < 93  # of 1,500 draws: six standard deviations
    again = plan_of(torch.zeros(2, 16), fault)
    assert [x for x in range(1600) if due(again._plan, at(x), 32).all()] == fired


def test_faults_draw_apart() -> None:
    fault = Fault("weight", 0, index=0, bit=0, recurrence="intermittent", probability=0.5)
    plan = plan_of(torch.zeros(8), fault, replace(fault, index=1))
    drawn = [due(plan._plan, at(step), 8).tolist() for step in range(200)]
    assert 60 < sum(one != other for one, other in drawn) < 140


def test_a_persistent_fault_fires_until_its_end() -> None:
    tensor = torch.zeros(3, dtype=torch.int32)
    fault = Fault(
        "weight", 2, index=1, bit=4, change="stuck_at_1", recurrence="persistent", until=4
    )
    plan = plan_of(tensor, fault)
    seen = []
    for step in range(7):
        tensor.zero_()
        plan.apply(tensor, at(step))
        seen.append(tensor.tolist()[1])
    assert seen == [0, 0, 16, 16, 16, 0, 0]
    assert plan.hits()[0].fired == 3


def test_two_faults_may_not_hit_a_word_at_one_step() -> None:
    tensor = torch.zeros(4, 4)
    row = Fault("weight", 3, index=4, bit=1, pattern="row", recurrence="persistent", until=8)
    column = Fault("weight", 8, index=2, bit=1, pattern="column")
    with pytest.raises(InjectionError, match="element 6 of w is hit twice at step 8"):
        plan_of(tensor, row, column)
    plan_of(tensor, row, replace(column, step=9))
    plan_of(tensor, row, replace(column, step=2))


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # torch's own, of prototypes
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (quantised, r"^w is of torch\.qint8, which cannot be injected into"),
        (lambda: torch.eye(3).to_sparse(), r"^w \(torch\.float32\) is torch\.sparse_coo"),
        (lambda: torch.ones(3, 1).expand(3, 4), r"^w \(torch\.float32\) of shape \[3, 4\] has sev"),
        (lambda: torch.ones(9).as_strided((4, 3), (2, 1)), r"^w \(torch\.float32\) of shape"),
        (lambda: torch.zeros(2, dtype=torch.complex64).conj(), r"^w \(torch\.complex64\) is lazi"),
        (lambda: torch.zeros(2, dtype=torch.complex64).conj().imag, r"is lazily conjugated or"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), r"^w \(torch\.float32\) is nested"),
        (lambda: torch.ones(0, 4), r"^w of shape \[0, 4\] has no element"),
    ],
)  # fmt: skip
def test_what_cannot_be_injected_into_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(InjectionError, match=message):
        plan_of(make(), Fault("weight", 0))


def test_a_tensor_of_another_kind_than_planned_for_is_refused() -> None:
    plan = plan_of(torch.ones(3), Fault("weight", 0))
    with pytest.raises(InjectionError, match=r"w is of torch\.bfloat16, .* for torch\.float32"):
        plan.apply(torch.ones(3, dtype=torch.bfloat16), at(0))
    with pytest.raises(InjectionError, match=r"w is on meta, .* for cpu"):
        plan.apply(torch.ones(3, device="meta"), at(0))
    with pytest.raises(InjectionError, match=r"w is of torch\.int32, .* for torch\.float32"):
        plan.revert(torch.ones(3, dtype=torch.int32))
    with pytest.raises(InjectionError, match="the step is on meta"):
        plan.apply(torch.ones(3), torch.zeros((), dtype=torch.int64, device="meta"))


@pytest.mark.parametrize("size", [0, 2])
def test_words_that_a_smaller_tensor_no_longer_has_are_left_alone(size: int) -> None:
    tensor = torch.ones(4)
    fault = Fault("activation", 0, index=1, bit=31, pattern="lane", period=2)
    plan = plan_of(tensor, fault)
    plan.apply(tensor, at(0))
    assert tensor.tolist() == [1, -1, 1, -1]
    assert plan.revert(tensor[:size]) == ((3,) if size else (1, 3))
    assert tensor.tolist() == [1, 1 if size else -1, 1, -1]


def test_a_word_that_does_not_hold_what_is_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.ones(4, 4).t()
    plan = plan_of(tensor, Fault("weight", 1, index=(2, 1), bit=31))
    copied = operation.memory
    monkeypatch.setattr(operation, "memory", lambda integers: copied(integers).clone())
    monkeypatch.setattr(operation, "write", lambda row, places, before, *_: before)
    plan.apply(tensor, at(1))
    with pytest.raises(InjectionError, match="element 9 of w read back as 0x3f800000, not as what"):
        plan.hits()


def test_a_log_that_was_copied_earlier_tells_of_that_moment() -> None:
    tensor = torch.ones(4)
    plan = plan_of(tensor, Fault("weight", 1, index=2, bit=31, recurrence="persistent"))
    plan.apply(tensor, at(1))
    copy = plan.log.clone()
    plan.apply(tensor, at(2))
    assert plan.hits(copy)[0].fired == 1
    assert plan.hits()[0].fired == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.complex64])
def test_plain_torch_waits_for_no_device(dtype: torch.dtype) -> None:
    with fake_device(), Waits() as waits:
        tensor = torch.empty(4, 6, dtype=dtype, device="cuda").t()
        plan = torch.empty(3, PLAN_COLUMNS, dtype=torch.int64, device="cuda")
        log = torch.empty(3, LOG_COLUMNS, dtype=torch.int64, device="cuda")
        corrupt_by_torch(tensor, plan, torch.empty((), dtype=torch.int64, device="cuda"), log)
    assert waits.found == []
    assert "scatter_add_" in waits.on_device
