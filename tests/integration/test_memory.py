"""The guard grows nothing: tensors over many steps, and its own memory for many layers."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from sdc_guard import Guard


def tensors() -> list[torch.Tensor]:
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def live_tensors(others: dict[int, weakref.ref[torch.Tensor]]) -> int:
    """How many there are, without those of others, that may go meanwhile."""
    mine = [one for one in tensors() if (id(one) not in others) or others[id(one)]() is not one]
    return len(mine)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_live_tensors_are_flat_over_500_steps(tmp_path: Path) -> None:
    # what was compiled before keeps tensors for some time
    others = {id(one): weakref.ref(one) for one in tensors()}
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 6)
    guard = Guard(
        model,
        optimizer,
        run=tmp_path,
        policy="record",
        shadow=(batch, lambda model, batch: model(batch).sum()),
        digest_budget=None,
    )
    counts = []
    for step in range(500):
        # full backward hooks keep gradients alive through such a graph
        loss = model(batch).square().mean()
        loss.backward(create_graph=step % 2 == 1)
        guard.observe(loss, batch)
        optimizer.step()
        optimizer.zero_grad()
        del loss
        if step in (50, 250, 499):
            guard.flush()  # nothing waits to be judged
            counts.append(live_tensors(others))
    guard.close()
    assert counts[0] == counts[1] == counts[2], counts
    assert guard.health.errors == 0, guard.health.last_error


MANY_LAYERS = """
    import ctypes, gc, sys
    import torch
    from torch import nn
    from sdc_guard import Guard

    torch.set_num_threads(1)

    # glibc keeps freed pages, up to 20 MiB of them here, by how the two threads' small pieces
    # happened to lie: those are nobody's
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)

    def resident():
        gc.collect()
        trim(0)
        pages = int(open("/proc/self/statm").read().split()[1])
        return pages * 4096 / 2**20

    def steps(parameters, optimizer, count, guard=None):
        for _ in range(count):
            loss = torch.stack(torch._foreach_norm(parameters)).sum()
            loss.backward()
            if guard:
                guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()

    def many(count):
        model = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(count))
        parameters = list(model)
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        steps(parameters, optimizer, 3)
        return model, parameters, optimizer

    # imports, compiled code and threads belong to the library, not to the layers
    model, parameters, optimizer = many(4)
    guard = Guard(model, optimizer, run=sys.argv[1] + "/small", policy="record")
    steps(parameters, optimizer, 30, guard)
    guard.close()
    model, parameters, optimizer = many(5000)
    before = resident()
    guard = Guard(model, optimizer, run=sys.argv[1] + "/large", policy="record")
    for count in (20, 10):  # as many as are written at once, and some more
        steps(parameters, optimizer, count, guard)
        guard.flush()
    print(resident() - before)
    assert guard.health.errors == guard.health.dropped == 0, guard.health
    guard.close()
"""


def test_five_thousand_layers_cost_less_than_50_megabytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MANY_LAYERS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown = float(done.stdout)
    print(f"the guard of 5,000 layers takes {grown:.1f} MiB")
    assert grown < 50
