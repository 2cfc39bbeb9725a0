"""The kernel that injects faults on CUDA, on a machine without CUDA: compiled for three
generations of devices; and the operator for compilers. test_interpreted.py runs it."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from ahead_of_time import compiled
from injected_words import storage
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import sdc_guard.inject
from sdc_guard.inject import corrupt as ways
from sdc_guard.inject.corrupt import corrupt, corrupt_on_cuda, fused_kernels
from sdc_guard.inject.custom_op import corrupt_operator
from sdc_guard.inject.device_plan import DevicePlan
from sdc_guard.inject.fault import Draw, Fault
from sdc_guard.inject.formats import format_of
from sdc_guard.inject.operation import LOG_COLUMNS, PLAN_COLUMNS
from sdc_guard.inject.planned import plan_fault

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ["rows", "count", "size1", "size2", "size3", "stride0", "stride1", "stride2", "stride3"]
POINTERS = {8: "*u8", 16: "*i16", 32: "*i32", 64: "*i64"}


def plan_of(tensor: torch.Tensor, *those: Fault) -> DevicePlan:
    draw = Draw(0, "weight", 0, 0)
    planned = [plan_fault(x, number, tensor, draw) for number, x in enumerate(those)]
    return DevicePlan(planned, tensor.dtype, tensor.device)


@pytest.fixture
def _kernels_unknown() -> Any:
    fused_kernels.cache_clear()
    yield
    fused_kernels.cache_clear()
    ways._unbuilt.clear()


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8])
def test_the_kernel_compiles_and_reads_back_from_memory(
    dtype: torch.dtype, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="needs triton, which CUDA builds of torch bring")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels, form = fused_kernels(), format_of(dtype)
    types = {"memory": POINTERS[form.width], "plan": "*i64", "step": "*i64", "log": "*i64"}
    types |= dict.fromkeys(NUMBERS, "i32")
    made = compiled(kernels.corrupt_words, types, kernels.constants(form), capability)
    assert len(made.asm["cubin"]) > 1000
    ptx = made.asm["ptx"]
    written = re.search(rf"st\.global\.b{form.width}\b", ptx)
    assert written is not None
    assert re.search(rf"ld\.volatile\.global\.b{form.width}\b", ptx[written.end() :])
    # whole numbers alone; no thread waits for another
    assert not re.search(r"\b(atom|red|bar)\.|\b(mul|fma|add)\.\S*f(16|32|64)", ptx)


@pytest.mark.usefixtures("_kernels_unknown")
def test_without_triton_plain_torch_injects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sdc_guard.inject.fused_cuda", raising=False)
    monkeypatch.delattr(sdc_guard.inject, "fused_cuda", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)  # makes its import fail
    assert fused_kernels() is None
    tensor = torch.ones(3)
    plan = plan_of(tensor, Fault("weight", 0, index=1, bit=31))
    corrupt_on_cuda(tensor, plan._plan, torch.tensor(0), plan.log)
    assert tensor.tolist() == [1, -1, 1]


@pytest.mark.usefixtures("_kernels_unknown")
def test_a_kernel_that_cannot_be_built_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoCompiler:
        @staticmethod
        def corrupt(*_: object) -> bool:
            raise RuntimeError("Failed to find C compiler\nset CC")

    monkeypatch.setattr(ways, "fused_kernels", lambda: NoCompiler)
    tensor = torch.ones(3)
    plan = plan_of(tensor, Fault("weight", 0, index=1, bit=31, recurrence="persistent"))
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        for step in range(3):
            corrupt_on_cuda(tensor, plan._plan, torch.tensor(step), plan.log)
    (record,) = caplog.records
    assert "RuntimeError: Failed to find C compiler); plain torch" in record.message
    assert plan.hits()[0].fired == 3


def test_the_operator_has_a_sound_schema() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    plan = plan_of(tensor, Fault("weight", 0, index=1, bit=31))
    arguments = (tensor, plan._plan, torch.tensor(0), plan.log)
    torch.library.opcheck(torch.ops.sdc_guard.corrupt.default, arguments)
    corrupt_operator(*arguments)
    assert tensor[0, 1] == -4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e8m0fnu], ids=str)
def test_the_operator_on_copies_has_a_sound_schema_and_the_same_bits(dtype: torch.dtype) -> None:
    tensor = bytes_of(12, dtype).reshape(3, 4).t()
    plan = plan_of(tensor, Fault("weight", 0, index=1, bit=3))
    arguments = (tensor, plan._plan, torch.tensor(0), plan.log)
    sound = storage(tensor)
    if dtype.is_complex:  # of the others torch has no product, with which it checks
        torch.library.opcheck(torch.ops.sdc_guard.corrupted.default, arguments)
    assert storage(tensor) == sound
    corrupt_operator(*arguments)
    assert sum(x != y for x, y in zip(storage(tensor), sound, strict=True)) == 1
    assert plan.hits()[0].touched[0].bits == [3]


def test_the_operator_takes_tensors_without_values() -> None:
    with FakeTensorMode():
        corrupt(
            torch.empty(4, device="cuda", dtype=torch.bfloat16),
            torch.empty(2, PLAN_COLUMNS, dtype=torch.int64, device="cuda"),
            torch.zeros((), dtype=torch.int64, device="cuda"),
            torch.empty(2, LOG_COLUMNS, dtype=torch.int64, device="cuda"),
        )


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of what inductor imports
@pytest.mark.filterwarnings("ignore:Torchinductor does not support:UserWarning")  # complex
# to try what vectors this machine has takes longer than all of this; the graph is the same
@torch._inductor.config.patch({"cpp.vec_isa_ok": False})
def test_a_compiled_function_injects_within_one_graph_and_is_compiled_once() -> None:
    tensors = [bytes_of(8, dtype).reshape(4, 2).t() for dtype in COMPILED]
    weight = torch.full((2, 3), 0.5, requires_grad=True)
    shaped = Fault("activation", 3, index=(1, 2), bit=22)
    plans = [plan_of(x, Fault("weight", 3, index=5, bit=0)) for x in tensors]
    computed, overwritten = (plan_of(weight, shaped) for _ in range(2))

    def function(weight: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for plan, tensor in zip(plans, tensors, strict=True):
            plan.apply(tensor, step)
        one, other = weight.exp(), weight.exp()
        result = one.clone()
        computed.apply(result, step)
        overwritten.apply(other, step)
        return result, other

    counter = CompileCounterWithBackend("inductor")
    fast = torch.compile(function, backend=counter, fullgraph=True)
    sound = [storage(x) for x in tensors]
    for step in (2, 3, 4):
        weight.grad = None
        result, other = fast(weight, torch.tensor(step))
        result.sum().backward(retain_graph=True)
        first = weight.grad.clone()
        other.sum().backward()
        bad = result[1, 2].item() != result[0, 0].item()
        assert bad == (step == 3)
        assert torch.equal(result, other)
        # what was overwritten where it lies is what the backward pass reads
        gradients = (weight.grad - first)[1, 2], first[1, 2]
        assert gradients == ((other if bad else result)[1, 2], result[0, 0])
    assert counter.frame_count == 1
    for plan, tensor, memory in zip(plans, tensors, sound, strict=True):
        assert plan.hits()[0].fired == 1
        memory[:] = bytes(x ^ y for x, y in zip(memory, flipped(tensor), strict=True))
        assert storage(tensor) == memory
    # another plan in the same memory
    computed._plan[0, 0] = 0
    assert fast(weight, torch.tensor(3))[0][0, 0] != result[0, 0]
    assert counter.frame_count == 1


# inductor knows no copy of float8_e8m0fnu in host memory
COMPILED = [
    torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float4_e2m1fn_x2, torch.int32,
    torch.bool, torch.complex64,
]  # fmt: skip


def bytes_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements whose bytes all are 1."""
    return torch.ones(count * dtype.itemsize, dtype=torch.uint8).view(dtype)


def flipped(tensor: torch.Tensor) -> bytes:
    """The bit 0 of element 5 of a tensor that is the transpose of 4 × 2 elements."""
    row, column = divmod(5, 4)
    found = bytearray(8 * tensor.element_size())
    found[(column * 2 + row) * tensor.element_size()] = 1
    return bytes(found)
