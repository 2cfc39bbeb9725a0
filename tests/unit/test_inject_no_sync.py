"""Neither an injector with faults to come nor one whose faults fire waits for a device."""

from __future__ import annotations

import pytest
import torch
from device_waits import Event, Waits, backward, fake_device
from torch import nn

from sdc_guard import evidence
from sdc_guard.inject.fault import Fault, Site
from sdc_guard.inject.injector import Injector

SITES: list[Site] = [
    "weight", "buffer", "exp_avg", "exp_avg_sq", "step", "gradient", "reduced_gradient",
    "activation", "batch",
]  # fmt: skip


@pytest.mark.parametrize("due", [False, True])
def test_no_operation_waits(due: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "arrived", False)
    monkeypatch.setattr(Event, "waited", [])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(evidence, "_event_behind", lambda stream: Event())
    with fake_device():
        model = nn.Sequential(
            nn.Embedding(9, 4, device="cuda"), nn.Flatten(), nn.BatchNorm1d(8, device="cuda")
        )
        optimizer = torch.optim.Adam(model.parameters(), capturable=True, foreach=False)
        injector = Injector(model, optimizer, seed=0)
        for site in SITES:
            injector.add(Fault(site, 1 if due else 10**9))
        tokens = torch.ones(3, 2, dtype=torch.int64, device="cuda")
        with Waits() as waits:
            for _ in range(3):
                model(tokens)
                backward(list(model.parameters()))
                optimizer.step()
                optimizer.zero_grad()
        assert injector.records == []  # nothing is read before it has arrived
    assert waits.found == []
    assert Event.waited == []
    assert injector.missed == []
    struck = [taken.fault.site for taken, _ in injector._firing.strikes]
    assert sorted(struck) == (sorted(SITES) if due else [])
