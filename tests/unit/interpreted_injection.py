"""The kernel that injects faults under Triton's interpreter, on CPU tensors, against plain torch.

Run by test_interpreted.py in a process of its own: whether Triton interprets is settled when it
is first imported.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from injected_words import DTYPES, FLOATS, corner_words, faults, storage, tensors, width_of

from sdc_guard.inject import corrupt, fused_cuda
from sdc_guard.inject.device_plan import _rows
from sdc_guard.inject.fault import Draw, Fault
from sdc_guard.inject.operation import CERTAIN, LOG_COLUMNS, corrupt_by_torch
from sdc_guard.inject.planned import plan_fault


def plan_of(tensor: torch.Tensor, *those: Fault) -> torch.Tensor:
    draw = Draw(0, "weight", 0, 0)
    return torch.from_numpy(_rows([plan_fault(x, n, tensor, draw) for n, x in enumerate(those)]))


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like it, in memory of its own."""
    whole = torch.frombuffer(storage(tensor), dtype=tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def check(tensor: torch.Tensor, plan: torch.Tensor, *steps: int) -> torch.Tensor:
    """The same bits and the same log by both ways; the log."""
    other = twin(tensor)
    logs = [torch.zeros((len(plan), LOG_COLUMNS), dtype=torch.int64) for _ in range(2)]
    for step in map(torch.tensor, steps):
        assert fused_cuda.corrupt(tensor, plan, step, logs[0])
        corrupt_by_torch(other, plan, step, logs[1])
        assert storage(tensor) == storage(other)
        assert logs[0].tolist() == logs[1].tolist()
    return logs[0]


@settings(max_examples=25)
@given(data=st.data())
def test_any_plan(data: st.DataObject) -> None:
    tensor = data.draw(tensors().filter(lambda x: x.dim() + x.is_complex() <= 4))
    planned = [data.draw(faults(tensor, step)) for step in range(2)]
    check(tensor, plan_of(tensor, *planned), 0, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_change(dtype: torch.dtype, rng: np.random.Generator) -> None:
    width = width_of(dtype)
    tensor = torch.frombuffer(bytearray(rng.bytes(300 * dtype.itemsize)), dtype=dtype)
    tensor = tensor.reshape(10, 30).t()
    those = [
        Fault("weight", 1, index=0, bits=(0, width - 1), pattern="row"),
        Fault("weight", 1, index=60, bit=width - 1, change="stuck_at_1", pattern="row"),
        Fault("weight", 1, index=100, bit=1, change="stuck_at_0", pattern="row"),
        Fault("weight", 1, index=140, change="zero", pattern="row"),
    ]
    if dtype != torch.float4_e2m1fn_x2:
        those.append(Fault("weight", 1, index=200, change="set", value=1.0, pattern="row"))
    log = check(tensor, plan_of(tensor, *those), 0, 1, 2)
    words = 10 * len(those) * (2 if dtype.is_complex else 1)
    assert log[:, 0].tolist() == [1] * words
    assert log[:, 4].tolist() == [0] * words


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scaling(dtype: torch.dtype) -> None:
    words = corner_words(dtype)
    size = width_of(dtype) // 8
    raw = bytearray(b"".join(word.to_bytes(size, "little") for word in words))
    for exponent in (1, -1, -3, 9, -20, 1100, -2200):
        tensor = torch.frombuffer(bytearray(raw), dtype=dtype)
        fault = Fault("weight", 0, index=0, change="scale", exponent=exponent, pattern="row")
        check(tensor, plan_of(tensor, fault), 0)


def test_a_chance_is_drawn_alike(rng: np.random.Generator) -> None:
    tensor = torch.zeros(1000)
    plan = plan_of(tensor, Fault("weight", 0, index=0, bit=3, pattern="row"))
    plan[:, 6], plan[:, 7] = 2**62, CERTAIN // 3
    plan[:, 8] = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, 1000))
    log = check(tensor, plan, 0, 1, 2**31, 2**61)
    assert 1100 < log[:, 0].sum() < 1600


def test_what_lies_beyond_the_end_of_a_smaller_tensor_does_not_fire() -> None:
    plan = plan_of(torch.zeros(9), Fault("weight", 0, index=2, bit=3, pattern="lane", period=2))
    assert check(torch.zeros(6), plan, 0)[:, 0].tolist() == [1, 1, 0, 0]
    assert fused_cuda.corrupt(torch.zeros(0), plan, torch.tensor(0), torch.zeros(4, 5).long())


def test_deeply_nested_memory_is_left_to_plain_torch() -> None:
    tensor = torch.zeros(3, 3, 3, 3, 3)[:, :2, :2, :2, :2]
    plan = plan_of(tensor, Fault("weight", 0, index=47, bit=31))
    log = torch.zeros(1, LOG_COLUMNS, dtype=torch.int64)
    assert not fused_cuda.corrupt(tensor, plan, torch.tensor(0), log)
    corrupt.corrupt_on_cuda(tensor, plan, torch.tensor(0), log)
    assert corrupt._unbuilt == []
    assert log.tolist() == [[1, 0, 0, 2**31, 0]]
