"""What people saw in their gradient norms, as small series: what the sensor says to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from made_signals import one
from torch import nn

from sdc_guard import Alert, Guard, RunReader, load_checkpoint
from sdc_guard.detect.incidents import Incident, IncidentBook
from sdc_guard.detect.sensor import StepSensor


def judged(
    norms: list[float], nonfinite: list[int] | None = None, first: int = 0
) -> tuple[list[Alert], dict[int, Incident]]:
    """All alerts of one layer's series, and the incidents they make, by number."""
    sensor, book = StepSensor(["w"], [4096]), IncidentBook()
    alerts: list[Alert] = []
    incidents: dict[int, Incident] = {}
    for place, norm in enumerate(norms):
        bad = np.array([nonfinite[place] if nonfinite else 0])
        signals = one(np.array([norm]), nonfinite=bad)
        found = sensor.judge(first + place, signals, 2.0)
        for incident in book.update(first + place, found):
            incidents[incident.number] = incident
        alerts += found
    return alerts, incidents


def flat(rng: np.random.Generator, level: float, count: int) -> list[float]:
    return (level * np.exp(rng.normal(0, 0.1, count))).tolist()


def test_a_divergence_that_heals_is_one_incident(rng: np.random.Generator) -> None:
    """From 0.24 to 960 within six steps, and back by itself within thirty."""
    rise = [0.242, 0.947, 2.39, 15.9, 145.0, 960.0]
    fall = np.geomspace(960, 0.25, 31)[1:].tolist()
    series = [*flat(rng, 0.25, 214), *rise, *fall, *flat(rng, 0.25, 150)]
    alerts, incidents = judged(series, first=31000)
    assert list(incidents) == [1]
    assert 31214 <= incidents[1].opened <= 31216
    assert alerts[-1].step <= 31250
    assert incidents[1].closed is not None


def test_a_burst_of_a_healthy_run_is_one_incident_not_many(rng: np.random.Generator) -> None:
    burst = [*np.geomspace(0.4, 131, 8), *np.geomspace(131, 0.4, 8)]
    series = [*flat(rng, 0.33, 500), *burst, *flat(rng, 0.33, 300)]
    _, incidents = judged([float(norm) for norm in series])
    assert list(incidents) == [1]
    assert incidents[1].closed is not None
    assert incidents[1].closed < 600


def test_true_zero_gradients_in_runs_are_no_alarm(rng: np.random.Generator) -> None:
    series = rng.uniform(0.01, 0.46, 2000)
    for start in rng.integers(0, 1990, 80):
        series[start : start + int(rng.integers(1, 7))] = 0.0
    with np.errstate(all="raise"):
        alerts, _ = judged(series.tolist())
    assert alerts == []


def test_a_series_of_nothing_but_nan_is_one_standing_alert() -> None:
    alerts, _ = judged([math.nan] * 300, nonfinite=[4] * 300)
    assert [(alert.step, alert.detector) for alert in alerts] == [(0, "nonfinite_gradient")]


def small(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(6, 3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    guard: Guard,
    steps: int,
    *,
    factor: float = 1.0,
    offset: float = 0.0,
) -> None:
    for _ in range(steps):
        x = torch.randn(32, 6)
        loss = (model(x) - x[:, :3]).square().mean() * factor
        loss.backward()
        guard.observe(loss + offset, x)
        optimizer.step()
        optimizer.zero_grad()


def test_a_level_that_shifts_at_a_restart_is_a_restart_and_no_alarm(tmp_path: Path) -> None:
    """Another number of ranks or package version, another loss: nothing that hardware did."""
    model, optimizer = small()
    with Guard(model, optimizer, run=tmp_path, policy="record") as guard:
        train(model, optimizer, guard, 60)
    version = mock.patch.object(torch, "__version__", "2.14.0+somewhere")
    with version, Guard(model, optimizer, run=tmp_path, first_step=60, policy="record") as guard:
        train(model, optimizer, guard, 60, factor=1000.0, offset=0.3)
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT count(*) FROM alerts") == [(0,)]
        events = dict(reader.rows("SELECT kind, detail FROM events WHERE attempt = 2"))
    assert {"restart", "environment change"} <= set(events)
    assert "2.14.0+somewhere" in json.dumps(json.loads(events["environment change"]))


def test_nan_out_of_nothing_is_an_alert_at_its_step_and_the_good_checkpoint_is_at_hand(
    tmp_path: Path,
) -> None:
    model, optimizer = small()
    alerts: list[Alert] = []
    with Guard(model, optimizer, run=tmp_path, policy="record", on_alert=alerts.append) as guard:
        train(model, optimizer, guard, 40)
        guard.checkpoint({"model": model, "optimizer": optimizer}, 39)
        train(model, optimizer, guard, 1, factor=math.nan)
        guard.checkpoint({"model": model, "optimizer": optimizer}, 40)
    assert {alert.step for alert in alerts} == {40}
    assert {alert.detector for alert in alerts} == {"nonfinite_gradient", "nonfinite_loss"}
    assert load_checkpoint(tmp_path)["step"] == 39
    with RunReader(tmp_path) as reader:
        found = reader.rows("SELECT step, status, reason FROM checkpoints ORDER BY step")
    assert [row[:2] for row in found] == [(39, "clean"), (40, "suspect")]
    assert "incident open since step 40" in found[1][2]


def test_a_step_without_gradients_has_no_norm_rather_than_zero(tmp_path: Path) -> None:
    model, optimizer = small()
    with Guard(model, optimizer, run=tmp_path, policy="record") as guard:
        guard.observe(1.5)
        optimizer.step()
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT loss, grad_norm FROM steps") == [(1.5, None)]
        assert reader.rows("SELECT count(*) FROM layers") == [(0,)]


def test_no_hooks_on_modules(tmp_path: Path) -> None:
    """They stay silent under torch.compile, break in-place operations and keep memory alive."""
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(inplace=True))
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=tmp_path, policy="record"):
        for module in model.modules():
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
                assert not getattr(module, kind)
            assert not module._backward_pre_hooks
