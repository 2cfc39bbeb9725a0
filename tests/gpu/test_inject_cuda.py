"""Faults on a CUDA device: the bits of the host, by the kernel, without waiting, in a graph too."""

from __future__ import annotations

import pytest
import torch
from test_cuda_digest import waiting_is_an_error

from sdc_guard.inject import corrupt as ways
from sdc_guard.inject.device_plan import DevicePlan
from sdc_guard.inject.fault import Draw, Fault
from sdc_guard.inject.formats import FORMATS, format_of
from sdc_guard.inject.operation import corrupt_by_torch
from sdc_guard.inject.planned import plan_fault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = range(4)
DTYPES = [dtype for dtype in FORMATS if dtype != torch.complex32]  # torch warns of it


def bits(dtype: torch.dtype) -> torch.Tensor:
    """300 elements of any bits, on the host."""
    raw = torch.randint(0, 256, (300 * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype)


def shaped(row: torch.Tensor) -> torch.Tensor:
    """30 × 10, transposed."""
    return row.reshape(10, 30).t()


def those(dtype: torch.dtype) -> list[Fault]:
    width = format_of(dtype).width
    found = [
        Fault("weight", 1, index=0, bits=(0, width - 1), pattern="row"),
        Fault("weight", 1, index=40, bit=width - 1, change="stuck_at_1", recurrence="persistent"),
        Fault("weight", 2, index=100, change="zero", pattern="lane", width=2, period=90),
        Fault(
            "weight", 0, index=60, bit=3, pattern="row", recurrence="intermittent", probability=0.5
        ),
    ]
    if format_of(dtype).number is not None:
        found += [
            Fault("weight", 3, index=20 + x, change="scale", exponent=e)
            for x, e in enumerate((1, -1, -5, 30, -30, -2200))
        ]
    return found


def plan_of(tensor: torch.Tensor) -> DevicePlan:
    draw = Draw(1, "weight", 0, 0)
    planned = [plan_fault(x, n, tensor, draw) for n, x in enumerate(those(tensor.dtype))]
    return DevicePlan(planned, tensor.dtype, tensor.device)


def raw(row: torch.Tensor) -> list[int]:
    found: list[int] = row.cpu().view(torch.uint8).tolist()
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_makes_the_bits_of_the_host(dtype: torch.dtype) -> None:
    host = bits(dtype)
    device, plain = host.cuda(), host.cuda()
    plan, other, on_host = plan_of(shaped(device)), plan_of(shaped(plain)), plan_of(shaped(host))
    steps = [torch.tensor(step, device="cuda") for step in STEPS]
    plan.apply(shaped(device), torch.tensor(-1, device="cuda"))  # builds the kernel
    torch.cuda.synchronize()
    for step in STEPS:
        with waiting_is_an_error():
            plan.apply(shaped(device), steps[step])
            corrupt_by_torch(shaped(plain), other._plan, steps[step], other.log)
        on_host.apply(shaped(host), torch.tensor(step))
        assert raw(device) == raw(plain) == raw(host)
        assert plan.log.tolist() == other.log.tolist() == on_host.log.tolist()
    assert ways._unbuilt == []
    assert plan.hits() == on_host.hits()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_graph_goes_on_with_other_steps(dtype: torch.dtype) -> None:
    host = bits(dtype)
    device = host.cuda()
    plan, on_host = plan_of(shaped(device)), plan_of(shaped(host))
    step = torch.tensor(-1, device="cuda")
    plan.apply(shaped(device), step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.apply(shaped(device), step)
        step += 1
    step.fill_(0)
    for number in STEPS:
        graph.replay()
        on_host.apply(shaped(host), torch.tensor(number))
        assert raw(device) == raw(host)
    assert plan.hits() == on_host.hits()


def test_it_reverts_to_the_same_bits() -> None:
    host = bits(torch.bfloat16)
    device = host.cuda()
    draw = Draw(1, "weight", 0, 0)
    fault = Fault("weight", 0, index=7, bits=(14, 15), pattern="column")
    planned = plan_fault(fault, 0, shaped(device), draw)
    plan = DevicePlan([planned], device.dtype, device.device)
    plan.apply(shaped(device), torch.tensor(0, device="cuda"))
    assert raw(device) != raw(host)
    assert plan.revert(shaped(device)) == ()
    assert raw(device) == raw(host)


def test_a_compiled_function_injects_on_the_device() -> None:
    weight = torch.full((2, 3), 0.5, device="cuda")
    planned = plan_fault(
        Fault("activation", 3, index=(1, 2), bit=22), 0, weight, Draw(1, "activation", 3, 0)
    )
    plan = DevicePlan([planned], weight.dtype, weight.device)

    def function(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        result = x.exp().clone()
        plan.apply(result, step)
        return result

    fast = torch.compile(function, backend="aot_eager", fullgraph=True)
    for step in (2, 3, 4):
        result = fast(weight, torch.tensor(step, device="cuda"))
        assert (result[1, 2] != result[0, 0]).item() == (step == 3)
