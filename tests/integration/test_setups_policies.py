"""Steps that are left out, by a policy, an exception or the script itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from training_parts import (
    Batch,
    attach,
    batches,
    equal,
    loss_of,
    net,
    norms,
    recorded,
    rows,
    same_bits,
    sound,
)

from sdc_guard import Alert, TrainingHalted


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
def test_setups_policy_skip_leaves_the_step_out(tmp_path: Path, closure: bool) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    reference = torch.optim.AdamW(twin.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy="skip", digest_budget=None)
    for step, batch in enumerate(batches(5)):
        bad = step == 2

        def evaluate(batch: Batch = batch, bad: bool = bad) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            (loss * float("nan") if bad else loss).backward()
            return loss

        if closure:
            optimizer.step(evaluate)  # type: ignore[arg-type] # torch wants a float of it
        else:
            evaluate()
            optimizer.step()
        assert all(p.grad is not None for p in model.parameters()), "given back"
        if not bad:
            reference.zero_grad()
            loss_of(twin, batch).backward()
            reference.step()
    guard.close()
    same_bits(model, twin)
    assert rows(tmp_path, "SELECT skipped FROM steps ORDER BY step") == [
        (False,), (False,), (True,), (False,), (False,),
    ]  # fmt: skip
    assert rows(tmp_path, "SELECT DISTINCT detector FROM alerts") == [("nonfinite_gradient",)]
    sound(guard)


def test_setups_policy_skip_leaves_out_each_of_several_steps_that_are_not_finite(
    tmp_path: Path,
) -> None:
    """Told is where they begin; applied is none of them."""
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    reference = torch.optim.AdamW(twin.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy="skip")
    for step, batch in enumerate(batches(6)):
        bad = step in (2, 3, 4)
        loss = loss_of(model, batch)
        (loss * float("nan") if bad else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not bad:
            reference.zero_grad()
            loss_of(twin, batch).backward()
            reference.step()
    guard.close()
    same_bits(model, twin)
    skipped = rows(tmp_path, "SELECT step FROM steps WHERE skipped ORDER BY step")
    assert skipped == [(2,), (3,), (4,)]
    assert rows(tmp_path, "SELECT DISTINCT step FROM alerts") == [(2,)]
    assert rows(tmp_path, "SELECT step FROM events WHERE kind = 'skip' ORDER BY step") == [
        (3,), (4,),
    ]  # fmt: skip
    sound(guard)


def test_setups_policy_halt_decides_before_the_step_of_a_closure(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy="halt")
    batch = batches(1)[0]

    def closure() -> torch.Tensor:
        loss = loss_of(model, batch)
        (loss * float("nan")).backward()
        return loss

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingHalted, match="non-finite"):
        optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    guard.close()


@pytest.mark.parametrize("policy", ["record", "skip", "halt"])
def test_setups_an_exception_inside_of_the_optimizers_step(tmp_path: Path, policy: str) -> None:
    """The step that it left is over; the next one is judged as its own."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy=policy, digest_budget=None)
    fail = [False]

    def out_of_memory(*_: Any) -> None:
        if fail[0]:
            raise MemoryError

    optimizer.register_step_pre_hook(out_of_memory)
    expected = []
    halted = []
    for step, batch in enumerate(batches(6)):
        loss = loss_of(model, batch) * (float("nan") if step == 3 else 1.0)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        fail[0] = step == 2
        try:
            optimizer.step()
        except MemoryError:
            assert step == 2
        except TrainingHalted:
            halted.append(step)
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    assert halted == ([3] if policy == "halt" else [])
    found = rows(tmp_path, "SELECT step, skipped FROM steps ORDER BY step")
    assert found == [(step, step == 3 and policy != "record") for step in range(6)]
    if policy != "record":
        assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("policy", ["record", "skip", "halt"])
def test_setups_an_exception_inside_of_a_closure(tmp_path: Path, policy: str) -> None:
    """The step changed nothing, and its row says so; the next one is judged as its own."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy=policy, digest_budget=None)
    for step, batch in enumerate(batches(5)):

        def closure(step: int = step, batch: Batch = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            if step == 2:
                raise MemoryError
            return loss

        try:
            optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it
        except MemoryError:
            assert step == 2
    guard.close()
    found = rows(tmp_path, "SELECT step, skipped FROM steps ORDER BY step")
    assert found == [(step, step == 2) for step in range(5)]
    assert rows(tmp_path, "SELECT * FROM alerts") == []
    phases = (
        f"SELECT kind, layer, h, s1, s2 FROM digests WHERE step = 2 AND phase = '{phase}'"
        " ORDER BY kind, layer"
        for phase in ("before", "after")
    )
    before, after = (rows(tmp_path, query) for query in phases)
    assert before == after != []
    sound(guard)


def test_setups_a_batch_that_the_script_drops_is_not_the_next_ones(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, policy="skip", on_alert=alerts.append)
    kept = []
    for number, batch in enumerate(batches(6)):
        loss = loss_of(model, batch) * (float("nan") if number == 3 else 1.0)
        loss.backward()
        guard.observe(loss, batch)
        if number == 3:
            optimizer.zero_grad()
            continue
        kept.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert alerts == []
    found = rows(tmp_path, "SELECT loss, accumulation, skipped, tokens FROM steps ORDER BY step")
    assert found == [(loss, 1, False, 16 * 6) for loss in kept]
