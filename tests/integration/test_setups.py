"""The guard in the loops that people have: what it records against float64 by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
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
    train,
)

from sdc_guard import Alert


def test_setups_plain(tmp_path: Path) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected = train(model, optimizer, batches(5), guard)
    train(twin, torch.optim.AdamW(twin.parameters(), lr=0.01), batches(5))
    guard.close()
    equal(recorded(tmp_path), expected)
    totals = [math.sqrt(sum(norm**2 for norm in layers.values())) for layers in expected]
    found = rows(
        tmp_path, "SELECT grad_norm, skipped, loss_scale, accumulation FROM steps ORDER BY step"
    )
    assert [row[0] for row in found] == pytest.approx(totals, rel=1e-6)
    assert {row[1:] for row in found} == {(False, None, 1)}
    same_bits(model, twin)
    sound(guard)


def test_setups_accumulation_over_four_micro_batches(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected, losses = [], []
    for step in range(3):
        total = 0.0
        for batch in batches(4, seed=step):
            loss = loss_of(model, batch) / 4
            loss.backward()
            guard.observe(loss * 4, batch)
            total += loss.item()
        expected.append(norms(model))
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    found = rows(tmp_path, "SELECT loss, accumulation FROM steps ORDER BY step")
    assert [row[0] for row in found] == pytest.approx(losses, rel=1e-6)
    assert {row[1] for row in found} == {4}
    sound(guard)


def test_setups_gradients_that_are_zeroed_in_place(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "idle": nn.Linear(6, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    for step, batch in enumerate(batches(4)):
        name = "idle" if step == 0 else "used"
        nn.functional.cross_entropy(model[name](batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    guard.close()
    found = recorded(tmp_path)
    assert sorted(found[0]) == ["idle.bias", "idle.weight"]  # missing is not zero
    assert found[1]["idle.weight"] == 0.0  # and zero is not what it was before
    assert found[1]["used.weight"] > 0
    sound(guard)


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_setups_clipping(tmp_path: Path, clip: str) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)

    def clipped() -> None:
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 1e-4)

    expected = train(model, optimizer, batches(3), guard, clipped)
    guard.close()
    equal(recorded(tmp_path), expected)


def test_setups_a_hook_that_clips_each_gradient_as_it_comes(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)

    def clip(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-1e-4, 1e-4)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)  # type: ignore[no-untyped-call] # torch has no types here
    expected = []
    for batch in batches(3):
        loss = loss_of(model, batch)
        named = dict(model.named_parameters())
        before = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
        expected.append({n: float(g.double().norm()) for n, g in zip(named, before, strict=True)})
        loss.backward()
        guard.observe(loss, batch)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    sound(guard)


def test_setups_clipping_spreads_an_inf_and_the_culprit_is_named(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, on_alert=alerts.append)
    model[2].bias.register_hook(lambda gradient: gradient * float("inf"))
    train(
        model,
        optimizer,
        batches(1),
        guard,
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )
    guard.close()
    assert [(alert.detector, alert.layer_name) for alert in alerts] == [
        ("nonfinite_gradient", "2.bias")
    ]


@pytest.mark.parametrize("kind", ["adamw", "lbfgs"])
def test_setups_closure(tmp_path: Path, kind: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        if kind == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=0.01)
        return torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    model, twin = net(), net()
    expected: list[dict[str, float]] = []
    losses: list[float] = []

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, note: bool) -> None:
        for batch in batches(4):
            first = [True]

            def closure(batch: Batch = batch, first: list[bool] = first) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                if note and first[0]:
                    expected.append(norms(model))
                    losses.append(loss.item())
                first[0] = False
                if kind == "adamw":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                return loss

            optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it

    optimizer = make(model)
    guard = attach(model, optimizer, tmp_path)
    run(model, optimizer, True)
    run(twin, make(twin), False)
    guard.close()
    equal(recorded(tmp_path), expected)
    assert [row[0] for row in rows(tmp_path, "SELECT loss FROM steps ORDER BY step")] == losses
    same_bits(model, twin)
    sound(guard)


def test_setups_two_optimizers_with_a_guard_each(tmp_path: Path) -> None:
    """A GAN: the generator's backward leaves gradients in the discriminator."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"generator": nn.Linear(4, 6), "discriminator": nn.Linear(6, 1)})
    optimizers = {name: torch.optim.Adam(part.parameters()) for name, part in model.items()}
    guards = {name: attach(part, optimizers[name], tmp_path / name) for name, part in model.items()}
    expected: dict[str, list[dict[str, float]]] = {name: [] for name in model}
    for _ in range(4):
        noise = torch.randn(8, 4)
        fake = model["generator"](noise)
        optimizers["discriminator"].zero_grad()
        model["discriminator"](fake.detach()).square().mean().backward()
        expected["discriminator"].append(norms(model["discriminator"]))
        optimizers["discriminator"].step()
        optimizers["generator"].zero_grad()
        model["discriminator"](fake).mean().backward()
        expected["generator"].append(norms(model["generator"]))
        optimizers["generator"].step()
    for name, guard in guards.items():
        guard.close()
        sound(guard)
        equal(recorded(tmp_path / name), expected[name])
        assert rows(tmp_path / name, "SELECT DISTINCT accumulation FROM steps") == [(1,)]


def test_setups_a_new_backward_ends_the_step_of_one_of_two_optimizers(tmp_path: Path) -> None:
    """With one guard, too, what steps after backwards of its own has steps of its own."""
    model = net()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizers = [torch.optim.AdamW(matrices), torch.optim.SGD(vectors, lr=0.1)]
    guard = attach(model, optimizers, tmp_path)
    for number, (inputs, targets) in enumerate(batches(6)):
        loss_of(model, (inputs, targets)).backward()
        optimizers[number % 2].step()
        model.zero_grad()
    guard.close()
    assert rows(tmp_path, "SELECT step FROM steps ORDER BY step") == [(n,) for n in range(6)]
    sound(guard)


def test_setups_two_optimizers_that_step_together(tmp_path: Path) -> None:
    model = net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizers = [torch.optim.AdamW(matrices), torch.optim.SGD(vectors, lr=0.1, momentum=0.9)]
    guard = attach(model, optimizers, tmp_path, digest_budget=None)
    expected = []
    for batch in batches(4):
        loss = loss_of(model, batch)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert guard.step == 4
    guard.close()
    equal(recorded(tmp_path), expected)
    # nothing changed between two steps, although the two optimizers follow one another
    assert rows(tmp_path, "SELECT count(*) FROM alerts") == [(0,)]
    sound(guard)


def test_setups_optimizer_in_backward(tmp_path: Path) -> None:
    def in_backward(model: nn.Module) -> list[torch.optim.Optimizer]:
        optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index] # it is one of them
            optimizers[parameter].zero_grad()  # type: ignore[index] # as above

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(apply)  # type: ignore[no-untyped-call] # torch has no types here
        return list(optimizers.values())

    model, twin, plain = net(), net(), net()
    guard = attach(model, in_backward(model), tmp_path, digest_budget=None)
    in_backward(twin)
    for batch in batches(4):
        loss = loss_of(model, batch)
        loss.backward()
        guard.observe(loss, batch)
        loss_of(twin, batch).backward()
    guard.close()
    expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=0.01), batches(4))
    equal(recorded(tmp_path), expected)
    same_bits(model, twin)
    assert rows(tmp_path, "SELECT count(*) FROM alerts") == [(0,)]
    told = rows(tmp_path, "SELECT detail FROM events WHERE kind = 'capture'")
    assert len(told) == 1
    assert "other hooks were registered on 4 parameters before" in told[0][0]
    sound(guard)


def test_setups_sparse_batches_have_a_hash(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    for batch in batches(2):
        loss_of(model, batch).backward()
        guard.observe(1.0, [batch[0].to_sparse(), torch.empty(3, device="meta")])
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert rows(tmp_path, "SELECT count(DISTINCT batch_hash) FROM steps") == [(2,)]
    sound(guard)
