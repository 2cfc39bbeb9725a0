"""The shadow pass beside torch.compile: the same bits, and no compilation more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import SETUPS, STEPS, WIDTH, Attach, different, loss_fn, train
from test_shadow_setups import guarded, nothing, shadow_losses
from torch import nn

from sdc_guard.signals.shadow import ShadowPass

# what torch itself warns of while it compiles
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor", "ignore:.torch.jit.script_method. is deprecated"
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


class Blocks(nn.Module):
    """A body of blocks with dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class Counting:
    """A backend that runs the graph as it is, and counts graphs and their runs."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run


def whole(model: nn.Module, backend: Counting) -> nn.Module:
    compiled: nn.Module = torch.compile(model, backend=backend)
    return compiled


def blocks(model: nn.Module, backend: Counting) -> nn.Module:
    for name, block in list(model.blocks.named_children()):
        setattr(model.blocks, name, torch.compile(block, backend=backend))
    return model


def blocks_in_place(model: nn.Module, backend: Counting) -> nn.Module:
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def in_place(model: nn.Module, backend: Counting) -> nn.Module:
    model.compile(backend=backend)
    return model


def inside_of_data_parallel(model: nn.Module, backend: Counting) -> nn.Module:
    return nn.DataParallel(torch.compile(model, backend=backend))


def around_data_parallel(model: nn.Module, backend: Counting) -> nn.Module:
    compiled: nn.Module = torch.compile(nn.DataParallel(model), backend=backend)
    return compiled


WAYS = [whole, in_place, blocks, blocks_in_place, inside_of_data_parallel, around_data_parallel]


def compiled_training(
    make: Callable[[], nn.Module], way: Callable[..., nn.Module], attach: Attach
) -> tuple[dict[str, Any], tuple[int, int]]:
    torch._dynamo.reset()
    backend = Counting()
    state = train(make, attach, compile_with=lambda model: way(model, backend))
    assert backend.runs >= STEPS
    return state, (backend.graphs, backend.runs)


def check(make: Callable[[], nn.Module], way: Callable[..., nn.Module], run: Path) -> None:
    without, counts = compiled_training(make, way, nothing)
    attach, guards = guarded(run)
    state, counts_with_shadow = compiled_training(make, way, attach)
    assert different(state, without) == []
    assert counts_with_shadow == counts  # the same is compiled, and still run
    assert guards[0].health.last_error == ""
    losses = shadow_losses(run)
    assert len(losses) == STEPS
    assert all(first == second for first, second in losses)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_setups_compiled_train_to_the_same_bits(
    way: Callable[..., nn.Module], tmp_path: Path
) -> None:
    check(Blocks, way, tmp_path / "run")


@pytest.mark.parametrize("name", ["frozen batch norm", "rebound buffer", "averages"])
def test_stateful_setups_compiled_train_to_the_same_bits(name: str, tmp_path: Path) -> None:
    check(SETUPS[name], whole, tmp_path / "run")


def test_setups_whose_optimizer_is_compiled_evaluate_uncompiled() -> None:
    torch._dynamo.reset()
    backend = Counting()
    model = whole(Blocks(), backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shadow = ShadowPass(torch.ones(2, WIDTH), loss_fn)
    losses: list[torch.Tensor] = []
    optimizer.register_step_post_hook(lambda *_: losses.append(shadow(model).losses))
    step = torch.compile(lambda: optimizer.step(), backend=backend)
    for _ in range(3):
        loss_fn(model, torch.randn(4, WIDTH)).backward()
        step()
        optimizer.zero_grad()
    assert len(losses) == 3
    model.eval()
    assert losses[-1][0] == loss_fn(model._orig_mod, torch.ones(2, WIDTH)).item()


def test_setups_whose_loss_function_is_compiled_evaluate_uncompiled() -> None:
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(loss_fn, backend=backend)
    model = Blocks()
    losses = ShadowPass(torch.ones(2, WIDTH), compiled)(model).losses
    assert losses[0] == losses[1]
    assert backend.graphs == 0
    compiled(model, torch.ones(2, WIDTH))
    assert backend.graphs > 0  # and from then on as before
