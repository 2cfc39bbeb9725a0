"""Every site on a CUDA device: the same bits as on the CPU, and read without waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard.inject.fault import Fault, Site
from sdc_guard.inject.injector import Injector

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SITES: list[Site] = [
    "weight", "buffer", "exp_avg", "exp_avg_sq", "step", "gradient", "reduced_gradient",
    "activation", "output_gradient", "batch",
]  # fmt: skip


def train(device: str, *faults: Fault, **options: Any) -> tuple[Injector, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    with Injector(model, optimizer, seed=2) as injector:
        for fault in faults:
            injector.add(fault)
        for step in range(4):
            tokens = torch.randint(9, (5, 2), generator=torch.Generator().manual_seed(step))
            model(tokens.to(device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return injector, model


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("site", SITES)
def test_a_site_is_hit_as_on_the_cpu(site: Site, options: dict[str, bool]) -> None:
    expected, _ = train("cpu", Fault(site, 2))
    injector, _ = train("cuda", Fault(site, 2), **options)
    assert injector.missed == []
    (one,), (other,) = expected.records, injector.records
    assert (one.tensor, one.step) == (other.tensor, other.step)
    assert one.touched[0].index == other.touched[0].index
    assert one.touched[0].bits == other.touched[0].bits or site == "batch"


def test_faults_that_are_not_due_change_no_bit() -> None:
    _, plain = train("cuda")
    injector, armed = train("cuda", *(Fault(site, 9) for site in SITES))
    assert injector.records == []
    for one, other in zip(plain.state_dict().values(), armed.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_firing_waits_for_nothing() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        model = nn.Linear(64, 64, device="cuda")
        x = torch.ones(8, 64, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        injector = Injector(model, optimizer, seed=2)
        for site in ("weight", "exp_avg", "gradient", "reduced_gradient", "activation"):
            injector.add(Fault(site, 2))
        for _ in range(4):
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    injector.close()
    assert len(injector.records) == 5


def test_revert_on_the_device() -> None:
    model = nn.Linear(64, 64, device="cuda")
    sound = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    injector = Injector(model, optimizer, seed=2)
    injector.add(Fault("weight", 0, "weight", pattern="row", change="zero"))
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    assert not torch.equal(model.weight, sound)
    assert injector.revert() == []
    assert torch.equal(model.weight, sound)
    injector.close()
