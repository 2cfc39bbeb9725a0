"""A layer whose output is wrong from a step on: the shadow loss moves there, stays, and tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from forensics.cli import main
from sdc_guard import Guard, RunReader

STEPS = 24


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


@pytest.mark.parametrize("first", [13])
def test_a_bisection_by_the_shadow_loss_finds_the_step(
    tmp_path: Path, first: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    step = 0

    def offset(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor | None:
        return None if step < first else output + 1.0

    model[-1].register_forward_hook(offset)
    weight = torch.randn(6, 1)
    inputs = torch.randn(64, 6)
    held_out = inputs, (inputs @ weight).tanh()
    with Guard(
        model, optimizer, run=tmp_path, shadow=(held_out, loss_fn), shadow_every=1, policy="record"
    ) as guard:
        for step in range(STEPS):
            x = torch.randn(64, 6)
            loss = loss_fn(model, (x, (x @ weight).tanh()))
            loss.backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
            guard.checkpoint({"model": model, "optimizer": optimizer}, step)
    with RunReader(tmp_path) as reader:
        losses = [x for (x,) in reader.rows("SELECT loss FROM shadow ORDER BY step")]
    assert min(losses[first:]) > losses[first - 1], "it moves there and stays"
    done = CliRunner().invoke(main, ["run", str(tmp_path), "--oracle", "shadow", "--json"])
    content = json.loads(done.stdout)
    assert (content["last_clean"], content["first_corrupt"]) == (first - 1, first)
