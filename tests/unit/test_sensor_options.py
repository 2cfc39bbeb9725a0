"""What a guard is told about its sensor, and that it keeps to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard import Guard
from sdc_guard.errors import UsageError

FAULT = 90


def told(run: Path, value: float = 1e6, **options: Any) -> set[str]:
    """Detectors that say something of one layer's gradient, multiplied at one step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    now = [-1]
    model[0].weight.register_hook(lambda grad: grad * value if now[0] == FAULT else grad)
    found: set[str] = set()
    with Guard(
        model,
        optimizer,
        run=run,
        policy="record",
        on_alert=lambda alert: found.add(alert.detector),
        probe_every=None,
        **options,
    ) as guard:
        for step in range(FAULT + 5):
            now[0] = step
            x = torch.randn(16, 6)
            loss = (model(x) - x[:, :3].sin()).square().mean()
            torch.autograd.backward(loss)
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    return found


def test_each_sensor_by_its_name(tmp_path: Path) -> None:
    assert told(tmp_path / "a") == {"gradient_norm"}
    assert told(tmp_path / "b", 0.0) == {"gradient_zeros"}
    plain = told(tmp_path / "c", sensor="average_multiple")
    assert plain == {"norm_ratio", "norm_robust_z"}


def test_no_budget_leaves_what_is_not_finite(tmp_path: Path) -> None:
    assert told(tmp_path / "a", false_incidents=None) == set()
    assert "nonfinite_gradient" in told(tmp_path / "b", float("inf"), false_incidents=None)


@pytest.mark.parametrize(
    "options",
    [
        {"sensor": "median"},
        {"false_incidents": 0},
        {"false_incidents": 1.0},
        {"false_incidents": -1e-4},
        {"false_incidents": float("nan")},
        {"false_incidents": "rarely"},
        {"false_incidents": True},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError) as refused:
        Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run=tmp_path, **options)
    assert str(next(iter(options.values()))) in str(refused.value)
    assert not (tmp_path / "run.json").exists()
