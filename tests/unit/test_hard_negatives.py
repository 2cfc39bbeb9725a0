"""What healthy runs do that looks like a fault: no layer is accused of it.

Each is tried on made streams, with a fault of one layer afterwards that has to be seen all the
same, and where it takes little on a real training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_signals import LAYERS, NUMEL, alerts_of, each, healthy, scaled, sensor
from torch import nn

from sdc_guard import Alert, Guard
from sdc_guard.detect.step_signals import StepSignals

STEPS, EVENT = 420, 300
Change = Callable[[StepSignals, np.random.Generator], None]


def whole(signals: StepSignals, steps: object, factor: np.ndarray | float) -> None:
    signals.norms[steps] *= factor  # type: ignore[index] # because any index will do
    signals.max_abs[steps] *= factor  # type: ignore[index] # as above


def spike(signals: StepSignals, _: np.random.Generator) -> None:
    """All layers × 30 at one step."""
    whole(signals, EVENT, 30.0)


def falling(signals: StepSignals, _: np.random.Generator) -> None:
    """Norms fall by 100 × over the first 200 steps, as in a warm-up of the learning rate."""
    fall = np.geomspace(1, 0.01, 200)[:, None]
    whole(signals, slice(200), fall)
    whole(signals, slice(200, None), 0.01)


def later_schedule(signals: StepSignals, _: np.random.Generator) -> None:
    """The same in the midst of a run: a second stage with a schedule of its own."""
    fall = np.geomspace(1, 0.01, 100)[:, None]
    whole(signals, slice(200, 300), fall)
    whole(signals, slice(300, None), 0.01)


def garbage_batch(signals: StepSignals, rng: np.random.Generator) -> None:
    """One batch to which every layer answers with more, each by its own factor."""
    whole(signals, EVENT, 8.0 * np.exp(rng.normal(0, 0.5, LAYERS)))


def missing_experts(signals: StepSignals, rng: np.random.Generator) -> None:
    """Six layers get no token, and no gradient, at a third of the steps."""
    gone = rng.uniform(size=(STEPS, 6)) < 0.35
    signals.norms[:, :6][gone] = math.nan
    signals.max_abs[:, :6][gone] = math.nan


def zero_experts(signals: StepSignals, rng: np.random.Generator) -> None:
    """Likewise, with gradients of zeros."""
    gone = rng.uniform(size=(STEPS, 6)) < 0.35
    signals.norms[:, :6][gone] = signals.max_abs[:, :6][gone] = 0.0
    signals.zeros[:, :6][gone] = NUMEL


def token_counts(signals: StepSignals, rng: np.random.Generator) -> None:
    """Between 64 and 4,096 tokens a step; the noise of a mean goes with their root."""
    whole(signals, slice(None), rng.uniform(64, 4096, (STEPS, 1)) ** -0.5)


def short_batches(signals: StepSignals, rng: np.random.Generator) -> None:
    """A tenth of the batches is short, and leaves most rows of an embedding at zero."""
    signals.zeros[rng.uniform(size=STEPS) < 0.1, 3] = 3 * NUMEL // 4


def loss_scale(signals: StepSignals, rng: np.random.Generator) -> None:
    """A smaller scale of float16: more of every gradient underflows to zero from then on."""
    signals.zeros[EVENT:] += rng.binomial(NUMEL, 0.02, (STEPS - EVENT, LAYERS))


CHANGES: list[Change] = [
    spike, falling, later_schedule, garbage_batch, missing_experts, zero_experts, token_counts,
    short_batches, loss_scale,
]  # fmt: skip


def of_layers(alerts: list[Alert]) -> list[str]:
    return [str(alert) for alert in alerts if alert.layer is not None]


@pytest.mark.parametrize("seed", [21, 22])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_layer_is_accused(change: Change, seed: int) -> None:
    signals = healthy(STEPS, seed)
    change(signals, np.random.default_rng(seed))
    watched = sensor()
    alerts = alerts_of(watched, signals)
    assert of_layers(alerts) == []
    steps = {alert.step for alert in alerts}
    assert len(steps) <= 1  # one incident of the whole at most
    fault = scaled(next(each(healthy(1, seed + 100))), 9, 30.0)
    level = np.nanmean(signals.norms[-1]) / healthy(1, seed).norms.mean()
    found = watched.judge(STEPS, scaled(fault, slice(None), level), 2.0)
    assert [(alert.detector, alert.layer) for alert in found] == [("gradient_norm", 9)]


def test_a_spike_of_the_whole_model_is_one_alert_of_the_whole() -> None:
    signals = healthy(STEPS, 23)
    whole(signals, EVENT, 300.0)
    (alert,) = alerts_of(sensor(), signals)
    assert (alert.step, alert.detector, alert.layer) == (EVENT, "global_norm", None)
    assert alert.score > alert.threshold


def test_a_resume_at_another_level_begins_a_new_window() -> None:
    """A new attempt has a sensor of its own, without any past to be compared with."""
    assert alerts_of(sensor(), healthy(200, 24)) == []
    signals = healthy(200, 25)
    whole(signals, slice(None), 1000.0)
    assert alerts_of(sensor(), signals, first=200) == []


# real trainings


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    widths = [12, 24, 24, 24, 24, 4]
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def batch_of(step: int, count: int = 16) -> torch.Tensor:
    return torch.randn(count, 12, generator=torch.Generator().manual_seed(1000 + step))


def trained(
    run: Path,
    batch: Callable[[int], torch.Tensor] = batch_of,
    rate: Callable[[int], float] = lambda _: 1e-3,
    factor: Callable[[int], float] = lambda _: 1.0,
    steps: int = 180,
) -> list[Alert]:
    """All alerts of a small training."""
    alerts: list[Alert] = []
    model = model_of(31)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Guard(
        model, optimizer, run=run, policy="record", on_alert=alerts.append, probe_every=None
    ) as guard:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate(step)
            x = batch(step)
            target = x[:, :4].sin() + 0.5 * x[:, 4:8] * x[:, 8:]
            loss = (model(x) - target).square().mean() * factor(step)
            torch.autograd.backward(loss)
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert guard.health.errors == 0
    return alerts


@pytest.mark.parametrize("kind", ["warm-up", "garbage", "spike", "counts"])
def test_no_layer_of_a_real_training_is_accused(kind: str, tmp_path: Path) -> None:
    options: dict[str, object] = {
        "warm-up": {"rate": lambda step: 1e-5 + 1e-2 * min(step, 100) / 100},
        "garbage": {"batch": lambda step: batch_of(step) if step != 150 else torch.ones(16, 12)},
        "spike": {"factor": lambda step: 30.0 if step == 150 else 1.0},
        "counts": {"batch": lambda step: batch_of(step, 4 + step * 37 % 60)},
    }[kind]
    assert of_layers(trained(tmp_path, **options)) == []  # type: ignore[arg-type] # because of the table
