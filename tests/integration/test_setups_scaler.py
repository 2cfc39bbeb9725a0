"""Mixed precision with a GradScaler: values without its scale, and the steps that it skips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import (
    attach,
    batches,
    equal,
    loss_of,
    net,
    norms,
    recorded,
    rows,
    sound,
)

from sdc_guard import Alert


@pytest.mark.parametrize("given", [True, False], ids=["scaler given", "scaler found"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_setups_grad_scaler(tmp_path: Path, fused: bool, given: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=3)
    alerts: list[Alert] = []
    guard = attach(
        model, optimizer, tmp_path, scaler=scaler if given else None, on_alert=alerts.append
    )
    expected, scales, skipped = [], [], []
    for step, batch in enumerate(batches(12)):
        loss = loss_of(model, batch)
        if step in (4, 5):
            loss = loss * float("inf")  # overflows as a scale that is too large does
        scales.append(scaler.get_scale())
        skipped.append(step in (4, 5))
        scaler.scale(loss).backward()
        guard.observe(loss, batch)
        expected.append({name: norm / scales[-1] for name, norm in norms(model).items()})
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert guard.step == step, "a skipped step counts"
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    assert len(set(scales)) == 3, "the scale grew and fell"
    equal(recorded(tmp_path), expected)
    found = rows(tmp_path, "SELECT loss_scale, skipped, accumulation FROM steps ORDER BY step")
    assert [row[0] for row in found] == scales
    assert [row[1] for row in found] == skipped
    assert {row[2] for row in found} == {1}
    events = rows(tmp_path, "SELECT step FROM events WHERE kind = 'scaler skip' ORDER BY step")
    assert events == [(4,), (5,)]
    # the script's loss was infinite; neither the scale's changes nor the skipped steps are alarms
    assert {alert.detector for alert in alerts} <= {"nonfinite_loss"}
    sound(guard)


def test_setups_grad_scaler_that_overflows_at_the_start(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    guard = attach(model, optimizer, tmp_path)
    skipped = []
    for batch in batches(12):
        loss = loss_of(model, batch) * 100
        scaler.scale(loss).backward()
        guard.observe(loss, batch)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
        optimizer.zero_grad()
    guard.close()
    assert 1 < sum(skipped) < 12
    assert [row[0] for row in rows(tmp_path, "SELECT skipped FROM steps ORDER BY step")] == skipped
    sound(guard)


def test_setups_a_collapsing_loss_scale_is_one_alert(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, scaler=scaler, on_alert=alerts.append)
    for batch in batches(10):
        loss = loss_of(model, batch)
        (scaler.scale(loss) * float("inf")).backward()
        guard.observe(loss, batch)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    assert [(alert.detector, alert.step) for alert in alerts] == [("loss_scale", 2)]
    assert rows(tmp_path, "SELECT count(*) FROM steps WHERE skipped") == [(10,)]
