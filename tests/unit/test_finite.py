"""What is not finite in a state that is saved."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from sdc_guard import Guard
from sdc_guard.signals.finite import not_finite_buffers

INFINITE = float("inf")


def test_a_step_that_was_skipped_leaves_nan_in_buffers_and_the_checkpoint_suspect(
    tmp_path: Path,
) -> None:
    """The parameters are spared; what the forward wrote is not."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = Guard(model, optimizer, run=tmp_path, policy="skip")
    for step in range(3):
        batch = torch.randn(8, 4) * (float("nan") if step == 1 else 1.0)
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = guard.checkpoint({"model": model, "optimizer": optimizer}, 2)
    guard.close()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert folder is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "suspect"
    assert "not finite: 1.running_mean buffer, 1.running_var buffer" in manifest["reasons"]


def test_masks_and_ranges_may_be_infinite_and_statistics_of_norms_may_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.tensor([0.0, -INFINITE]))
    model.register_buffer("least", torch.tensor(INFINITE))
    model.register_buffer("ids", torch.arange(3))
    model.register_buffer("scratch", torch.tensor([float("nan")]), persistent=False)
    assert not_finite_buffers(model) == []
    model[1].running_mean[1] = INFINITE
    assert not_finite_buffers(model) == ["not finite: 1.running_mean buffer"]
    model.mask[0] = float("nan")
    model.register_buffer("empty", torch.empty(0))
    assert not_finite_buffers(model) == ["not finite: mask buffer, 1.running_mean buffer"]
