"""Checkpoints that are loaded into a copy of the model and give the loss of the training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import rows

import sdc_guard.shadow_gate
from forensics.index import index
from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.confirmations import AWAITED, read_confirmations, settled
from sdc_guard.archive.convictions import read_convictions
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.retention.inventory import Inventory
from sdc_guard.errors import ArchiveIncomplete, UsageError


class Training:
    """A model with buffers and dropout, which saves after each step."""

    def __init__(self, run: Path, every: int | None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3),
            torch.nn.Linear(6, 2),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        shadow = (torch.randn(5, 4), lambda model, batch: model(batch).square().mean())
        options = {"first_step": 1, "policy": "record", "digest_budget": None, **options}
        self.guard = Guard(
            self.model, self.optimizer, run=run, shadow=shadow, verify_archive=every, **options
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.model(torch.randn(8, 4)).square().mean()
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            objects = {"model": self.model, "optimizer": self.optimizer}
            assert self.guard.checkpoint(objects, self.guard.step - 1) is not None

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values(), torch.get_rng_state()]
        return [tensor.numpy().tobytes() for tensor in tensors]


def statuses(run: Path) -> list[tuple[int, str]]:
    return [(one.step, one.status) for one in index(run)]


def test_every_kth_is_confirmed_and_the_training_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    bits = []
    for every in (2, None):
        run = tmp_path / str(every)
        training = Training(run, every)
        training.steps(5)
        training.guard.close()
        assert training.guard.health.errors == 0
        bits.append(training.bits())
    assert bits[0] == bits[1]
    run = tmp_path / "2"
    confirmed = read_confirmations(run / "archive")
    assert [(one.step, one.by) for one in confirmed] == [
        (1, "shadow"),
        (3, "shadow"),
        (5, "shadow"),
    ]
    manifest = Manifest.read(run / "archive" / "step=000003")
    assert (manifest.status, manifest.reasons) == ("untested", (AWAITED,))  # as it was sealed
    assert statuses(run) == [(step, "clean") for step in (1, 2, 3, 4, 5)]
    assert load_checkpoint(run)["step"] == 5
    assert all(one.good for one in Inventory(run).look(0.0).stored)  # for keeping, too
    assert rows(run, "step, status", "checkpoints WHERE step < 3") == [
        (1, "clean"), (1, "clean"), (2, "clean"),
    ]  # fmt: skip


def test_one_that_gives_another_loss_is_suspect_and_never_loaded_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = sdc_guard.shadow_gate.load_payload

    def wrong(folder: Path) -> dict[str, Any]:
        payload = inner(folder)
        payload["model"]["3.bias"][1] += 0.5
        return payload

    training = Training(tmp_path, 2)
    training.steps(2)
    monkeypatch.setattr(sdc_guard.shadow_gate, "load_payload", wrong)
    training.steps(1)
    training.guard.close()
    (conviction,) = read_convictions(tmp_path / "archive")
    assert (conviction.checkpoint, conviction.first_corrupt) == ("step=000003", 3)
    assert "its shadow loss is" in conviction.reason
    assert statuses(tmp_path) == [(1, "clean"), (2, "clean"), (3, "suspect")]
    assert load_checkpoint(tmp_path)["step"] == 2


def test_another_formats_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    training = Training(tmp_path, 1, archive_format="dcp")
    training.steps(2)
    training.guard.close()
    assert training.guard.health.errors == 0
    assert statuses(tmp_path) == [(1, "clean"), (2, "clean")]
    assert rows(tmp_path, "detail", "events WHERE kind = 'capture'") == [
        (sdc_guard.shadow_gate.NO_MODEL,)
    ]


def test_a_confirmation_is_of_one_checkpoint_not_of_its_name(tmp_path: Path) -> None:
    training = Training(tmp_path, 1)
    training.steps(1)
    training.guard.close()
    folder = tmp_path / "archive" / "step=000001"
    manifest = Manifest.read(folder)
    (one,) = read_confirmations(tmp_path / "archive")
    assert settled(folder, manifest, [one]).status == "clean"
    for other in (
        replace(one, attempt=one.attempt + 1),
        replace(one, step=2),
        replace(one, time=manifest.created - 1.0),
        replace(one, by="command"),
    ):
        assert settled(folder, manifest, [other]).status == "untested"


def test_what_could_not_be_compared_stays_untested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path) -> dict[str, Any]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(sdc_guard.shadow_gate, "load_payload", broken)
    training = Training(tmp_path, 1)
    training.steps(1)
    training.guard.checkpoint({"weights": training.model.state_dict()}, 1)  # not the model itself
    training.guard.close()
    assert training.guard.health.errors == 0
    first, second = sorted(index(tmp_path), key=lambda one: one.path.name)
    assert (first.status, first.reasons) == ("untested", (AWAITED,))
    assert second.status == "clean"  # by its digests
    told = rows(tmp_path, "status, reason", "checkpoints")
    assert ("untested", "its shadow loss could not be compared: RuntimeError: no memory") in told
    assert rows(tmp_path, "detail", "events WHERE kind = 'capture'") == [
        (sdc_guard.shadow_gate.NO_MODEL,)
    ]
    (second.path / "manifest.json").unlink()
    with pytest.raises(ArchiveIncomplete):
        load_checkpoint(tmp_path)


def test_it_needs_a_shadow_and_a_number(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="verify_archive needs shadow"):
        Guard(model, optimizer, run=tmp_path, verify_archive=1)
    with pytest.raises(UsageError, match="verify_archive must be at least 1"):
        Guard(model, optimizer, run=tmp_path, verify_archive=0)
