"""The check's part in the thread of the training: it waits for nothing, whatever the others do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_waits import Event, Waits, backward, fake_device
from torch import nn

from sdc_guard import evidence
from sdc_guard.checks import across_ranks
from sdc_guard.checks.replicas.check import ReplicaCheck
from sdc_guard.detect.alert import Alert
from sdc_guard.ranks import Ranks
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.shadow import ShadowPass
from sdc_guard.signals.state import CarriedState


class Heard:
    """What the check told."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str]] = []

    def report(self, alerts: list[Alert]) -> None:
        raise AssertionError(alerts)

    def event(self, step: int, kind: str, detail: str) -> None:
        assert kind == "replicas"
        self.events.append((step, detail))


def first_of_two(tmp_path: Path) -> Ranks:
    """Rank 0, whose other rank never says anything."""
    ranks = Ranks(tmp_path / "run")
    ranks.rank, ranks.world_size = 0, 2
    ranks._store = dist.FileStore(str(tmp_path / "store"), 1)
    return ranks


def trained(device: str) -> tuple[nn.Module, CarriedState]:
    model = nn.Sequential(nn.Linear(3, 4, device=device), nn.Linear(4, 2, device=device))
    optimizer = torch.optim.Adam(model.parameters(), capturable=device != "cpu", foreach=False)
    backward(list(model.parameters()))
    optimizer.step()
    return model, CarriedState(model_layers(model), [optimizer], set())


def test_no_operation_of_a_check_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(evidence, "_event_behind", lambda stream: Event())
    monkeypatch.setattr(Event, "arrived", False)
    monkeypatch.setattr(Event, "waited", [])
    with fake_device():
        model, state = trained("cuda")
        shadow = ShadowPass(torch.zeros(2, 3), lambda m, x: m(x).sum())
        shadow._batch = torch.zeros(2, 3, device="cuda")  # its first hash is read at once
        shadow.newest = type("Result", (), {"losses": torch.zeros(2, device="cuda")})()
        check = ReplicaCheck(Heard(), model, lambda: state, first_of_two(tmp_path), 5, shadow)
        with Waits() as waits:
            for step in range(6):
                check.step_ended(step)
    assert waits.found == []
    assert "copy_" in waits.on_device
    assert len(check._taken) == 2  # the first step and the fifth; nothing was read or sent
    assert check._thread.waiting == 0
    assert Event.waited == []


def test_a_step_costs_nothing_while_the_other_rank_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(across_ranks, "_SHORT", 0.05)
    model, state = trained("cpu")
    heard = Heard()
    check = ReplicaCheck(heard, model, lambda: state, first_of_two(tmp_path), 1)
    for step in range(2000):
        check.step_ended(step)
    assert len(check._taken) == 0
    assert check._thread.waiting <= 1000
    assert check._thread.left_out > 0
    started = time.monotonic()
    check._tell(2000, check._thread.close(0.1))
    assert time.monotonic() - started < 10
    assert (0, "nothing to compare with came in time from rank 1") in heard.events
    assert len(heard.events) == 2  # and that comparisons are left out


def test_without_a_store_it_says_so_once(tmp_path: Path) -> None:
    model, state = trained("cpu")
    ranks, heard = Ranks(tmp_path / "run"), Heard()
    ranks.world_size = 2
    check = ReplicaCheck(heard, model, lambda: state, ranks, 1)
    for step in range(3):
        check.step_ended(step)
    check.close()
    ((step, line),) = heard.events
    assert step == 0
    assert "torch.distributed was not initialised" in line


def test_trouble_with_a_tensor_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no memory")

    model, state = trained("cpu")
    ranks = first_of_two(tmp_path)
    check = ReplicaCheck(Heard(), model, lambda: state, ranks, 1)
    monkeypatch.setattr("sdc_guard.checks.replicas.check.digest_state", broken)
    with pytest.raises(RuntimeError):
        check.step_ended(0)
    assert [taken.passed for taken in check._taken] == [True]
    for taken in check._taken:
        check._send(taken)
    check._thread.close(0.2)
    assert check._thread.trouble is None
