"""Digests taken beside the training are those that are taken in it, and accuse no more."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_parts import attach, batches, loss_of, rows, same_bits, sound, train

from sdc_guard import Guard
from sdc_guard.digest import digest_rows
from sdc_guard.inject.bits import flip_bit
from sdc_guard.signals import overlap, shared_digest

Train = Callable[[nn.Module, torch.optim.Optimizer, Guard], None]
_DIGESTS = "SELECT step, phase, kind, layer, h, s1, s2 FROM digests ORDER BY ALL"


@pytest.fixture(autouse=True)
def _small_states_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "LEAST", 1)
    monkeypatch.setattr("sdc_guard.signals.beside.core_is_free", lambda: True)


@pytest.fixture
def _slow_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are read one by one and slowly: what is written meanwhile is hit in the middle."""

    def slowly(tensors: list[torch.Tensor], **options: Any) -> torch.Tensor:
        time.sleep(0.001)
        return digest_rows(tensors, **options)

    monkeypatch.setattr(shared_digest, "_PIECE", 1)
    monkeypatch.setattr(shared_digest, "digest_rows", slowly)
    monkeypatch.setattr(overlap, "_AT_ONCE", -1.0)  # moments are left to the other thread


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Linear(40, 3))


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    train(model, optimizer, batches(8), guard)


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for number, batch in enumerate(batches(20)):
        loss_of(model, batch).backward()
        if number % 3 == 2 or number > 14:  # another number of them towards the end
            optimizer.step()
            optimizer.zero_grad()


def with_closure(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for batch in batches(6):

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=3)
    for step, batch in enumerate(batches(8)):
        loss = loss_of(model, batch) * (float("inf") if step == 4 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def averages_for_an_evaluation(
    model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard
) -> None:
    """Averages in place of the weights right after the step, and the weights back again."""
    average = [p.detach().clone() for p in model.parameters()]
    for batch in batches(6):
        train(model, optimizer, [batch], guard)
        kept = [p.detach().clone() for p in model.parameters()]
        for parameter, mean in zip(model.parameters(), average, strict=True):
            parameter.data.copy_(mean)
        with torch.no_grad():
            loss_of(model, batch)
        for parameter, weights in zip(model.parameters(), kept, strict=True):
            parameter.data.copy_(weights)


def sharpness(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    """Two backwards a step, the second one at weights that were moved and are put back."""
    for number, batch in enumerate(batches(8)):
        loss_of(model, batch).backward()
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=0.05)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        for parameter, weights in zip(model.parameters(), kept, strict=True):
            if number % 2:
                parameter.data = weights
            else:
                parameter.data.copy_(weights)
        optimizer.step()
        optimizer.zero_grad()


def clamped(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for batch in batches(6):
        train(model, optimizer, [batch], guard)
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        guard.refresh()


def interrupted(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    for batch in batches(6):
        train(model, optimizer, [batch], guard)
        handle = next(model.parameters()).register_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            loss_of(model, batch).backward()
        handle.remove()
        optimizer.zero_grad()


SETUPS: list[Train] = [
    plain, accumulated, with_closure, scaled, averages_for_an_evaluation, sharpness, clamped,
    interrupted,
]  # fmt: skip


@pytest.mark.usefixtures("_slow_to_read")
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.__name__)
def test_the_same_bits_and_digests_as_without_and_nothing_accused(
    setup: Train, tmp_path: Path
) -> None:
    models = []
    for name, beside in (("one", False), ("two", True)):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run = tmp_path / name
        guard = attach(model, optimizer, run, digest_budget=None, overlap_digests=beside)
        setup(model, optimizer, guard)
        guard.close()
        sound(guard)
        assert guard.health.alerts == {}
        models.append(model)
    same_bits(*models)
    assert rows(tmp_path / "one", _DIGESTS) == rows(tmp_path / "two", _DIGESTS)
    overlapped = rows(tmp_path / "two", "SELECT detail FROM events WHERE kind = 'overlap'")
    assert len(overlapped) == 1


def test_a_part_of_the_state_by_turns(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=20.0, overlap_digests=True)
    train(model, optimizer, batches(40), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    assert rows(tmp_path, "SELECT count(*) > 20 FROM digests WHERE phase = 'before'") == [(True,)]


@pytest.mark.parametrize("kind", ["param", "exp_avg", "exp_avg_sq"])
def test_a_fault_between_the_readings_is_named(kind: str, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=True)
    train(model, optimizer, batches(4), guard)
    weight = model[2].weight
    tensor = weight.data if kind == "param" else optimizer.state[weight][kind]
    guard.flush()  # what the step left has been read
    flip_bit(tensor, 77, 11)
    train(model, optimizer, batches(2, seed=2), guard)
    guard.close()
    sound(guard)
    found = "step, name, detail->>'kind', (detail->>'index')::INT, detail->'bits'"
    query = f"SELECT {found} FROM alerts JOIN layer_names USING (layer)"
    assert rows(tmp_path, query) == [(4, "2.weight", kind, 77, "[11]")]


def test_a_checkpoint_is_clean_and_a_layer_may_be_added(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=True)
    train(model, optimizer, batches(4), guard)
    guard.checkpoint({"model": model, "optimizer": optimizer}, 3)
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model[4].parameters())})
    train(model, optimizer, batches(4, seed=2), guard)
    guard.checkpoint({"model": model, "optimizer": optimizer}, 7)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    assert rows(tmp_path, "SELECT status FROM checkpoints") == [("clean",), ("clean",)]


def test_without_a_free_core_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdc_guard.signals.beside.core_is_free", lambda: False)
    model = net()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=True)
    train(model, optimizer, batches(4), guard)
    guard.close()
    train(twin, torch.optim.AdamW(twin.parameters()), batches(4))
    same_bits(model, twin)
    sound(guard)
    assert rows(tmp_path, "SELECT count(*) FROM events WHERE kind = 'overlap'") == [(0,)]


@pytest.mark.parametrize("how_many", [1, 2, 7])
def test_a_reading_that_fails_costs_a_comparison_and_nothing_else(
    how_many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=True)
    train(model, optimizer, batches(4), guard)
    failures = [RuntimeError("broken on purpose")] * how_many

    def broken(tensors: list[torch.Tensor], **options: Any) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return digest_rows(tensors, **options)

    monkeypatch.setattr(shared_digest, "_PIECE", 1)
    monkeypatch.setattr(shared_digest, "digest_rows", broken)
    train(model, optimizer, batches(8, seed=2), guard)
    guard.close()
    train(twin, torch.optim.AdamW(twin.parameters()), [*batches(4), *batches(8, seed=2)])
    same_bits(model, twin)
    assert not failures
    assert guard.health.errors > 0
    assert guard.health.alerts == {}
    assert rows(tmp_path, "SELECT count(*) > 100 FROM digests WHERE step > 8") == [(True,)]


@pytest.mark.parametrize("beside", [False, True])
def test_state_that_was_not_found_before_the_update_is_not_looked_for_after_it(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=beside)
    train(model, optimizer, batches(4), guard)
    find = guard._collector._tensors
    failures = [RuntimeError("broken on purpose")]

    def broken() -> dict[Any, torch.Tensor]:
        if failures:
            raise failures.pop()
        return find()

    monkeypatch.setattr(guard._collector, "_tensors", broken)
    if beside:  # of a backward that nobody heard of
        monkeypatch.setattr(guard._collector, "backward_begins", lambda: None)
    train(model, optimizer, batches(4, seed=2), guard)
    guard.close()
    assert guard.health.errors == 1
    assert guard.health.alerts == {}


@pytest.mark.parametrize("beside", [False, True])
def test_a_fault_in_the_forward_of_a_closure_is_named(beside: bool, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=beside)
    with_closure(model, optimizer, guard)
    guard.flush()
    handle = model[1].register_forward_hook(lambda *_: flip_bit(model[2].weight, 9, 4) and None)
    batch = batches(1)[0]

    def closure() -> torch.Tensor:
        loss = loss_of(model, batch)
        loss.backward()
        handle.remove()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it
    guard.close()
    sound(guard)
    query = "SELECT step, name, detail->'bits' FROM alerts JOIN layer_names USING (layer)"
    assert rows(tmp_path, query) == [(6, "2.weight", "[4]")]


def test_an_optimizer_that_moves_before_its_closure_is_not_accused(tmp_path: Path) -> None:
    class Ahead(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.add_(1e-3)
            loss = closure()
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.sub_(1e-3)
            return loss

    model = net()
    optimizer = Ahead(model.parameters(), lr=0.1)
    guard = attach(model, optimizer, tmp_path, digest_budget=None, overlap_digests=True)
    with_closure(model, optimizer, guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
