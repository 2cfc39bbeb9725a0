"""torch.compile: faults within the graph, without a break, and none compiled in."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard.inject.fault import Fault
from sdc_guard.inject.injector import Injector


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return found


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        yield
    torch._dynamo.reset()


def train(compiled: str, *faults: Fault) -> tuple[Injector, list[torch.Tensor], int]:
    """Three steps; the injector, the parameters after it, and how many graphs were compiled."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)

    called = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
    given = called if compiled == "outside" else model
    with Injector(given, optimizer, seed=1) as injector:
        for fault in faults:
            injector.add(fault)
        for step in range(3):
            called(torch.full((2, 4), 1.0 + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return injector, [p.detach().clone() for p in model.parameters()], len(graphs)


FAULTS = (
    Fault("activation", 1, "first", 3, change="zero"),
    Fault("output_gradient", 2, "second", 1, bit=31),
    Fault("gradient", 1, "second.bias", 2, bit=31),
    Fault("weight", 2, "first.weight", 7, bit=31),
)


@pytest.mark.parametrize("compiled", ["outside", "inside"])
def test_the_same_faults_as_in_eager_in_one_graph(compiled: str) -> None:
    eager, expected, _ = train("", *FAULTS)
    injector, found, graphs = train(compiled, *FAULTS)
    assert graphs == 1, "something was compiled again"
    assert injector.missed == []
    assert {record.backend for record in injector.records} == {"compiled"}
    assert {record.backend for record in eager.records} == {"eager"}

    def told(one: Injector) -> set[Any]:
        return {(r.fault, r.step, r.tensor, r.touched[0].index) for r in one.records}

    assert told(injector) == told(eager)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_compiled_training_with_faults_that_are_not_due_is_the_same() -> None:
    late = [Fault(fault.site, 9, fault.tensor) for fault in FAULTS]
    plain, armed = train("outside"), train("outside", *late)
    assert all(torch.equal(a, b) for a, b in zip(plain[1], armed[1], strict=True))


def test_what_no_hook_tells_of_is_said() -> None:
    """The injector has the model within: nobody tells it of the first forward, nor of batches."""
    injector, _, _ = train("inside", Fault("weight", 0), Fault("batch", 2), Fault("weight", 1))
    assert [record.step for record in injector.records] == [1]
    assert [missed.fault for missed in injector.missed] == [0, 1]
    assert all("give the injector what torch.compile" in m.reason for m in injector.missed)


def test_a_hook_on_code_that_is_compiled_already_is_said() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called = torch.compile(model, backend="aot_eager")
    called(torch.ones(2, 4)).sum().backward()
    with Injector(called, optimizer, seed=1) as injector:
        injector.add(Fault("activation", 0, "first"))
        called(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    (missed,) = injector.missed
    assert "compiled before the injector was attached" in missed.reason
