"""What the ring holds of steps that are not yet judged makes the rows that judging them makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.evidence import BeforeStep, Gradients, HostCopy
from sdc_guard.kept_evidence import before_frame, rows_of
from sdc_guard.layer_rows import Held, layer_rows
from sdc_guard.signals.placement import Placement
from sdc_guard.signals.state import NO_DIGESTS
from sdc_guard.store.left_rows import left_tables
from sdc_guard.store.ring import rings

STEPS = 12
Train = Callable[[nn.Module, torch.optim.Optimizer, Guard], None]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for _ in range(STEPS):
        batch = torch.randn(4, 6)
        loss = model(batch).square().mean()
        loss.backward()
        guard.observe(loss, batch)
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for step in range(STEPS):
        for batch in torch.randn(6, 6).split(2):
            loss = model(batch).square().mean()
            loss.backward()
            guard.observe(loss, {"x": batch, "y": batch.sum(1)})
        if step % 3 == 1:
            model[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad()


def unobserved(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for _ in range(STEPS):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=3)
    for step in range(STEPS):
        batch = torch.randn(4, 6)
        loss = model(batch).square().mean() * (float("inf") if step == 5 else 1.0)
        scaler.scale(loss).backward()
        guard.observe(loss, batch)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def closure(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    for _ in range(STEPS):
        batch = torch.randn(4, 6)

        def evaluate(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(evaluate)


def read(run: Path, table: str, steps: tuple[int, int]) -> Any:
    with RunReader(run) as reader:
        return reader.arrow(
            f"SELECT * EXCLUDE rank FROM {table} WHERE step BETWEEN {steps[0]} AND {steps[1]}"
        )


@pytest.mark.parametrize("train", [plain, accumulated, unobserved, scaled, closure])
@pytest.mark.parametrize("whole", [True, False], ids=["every digest", "no digest"])
def test_the_same_rows(tmp_path: Path, train: Train, whole: bool) -> None:
    run = tmp_path / "run"
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model[2].bias.requires_grad_(False)
    guard = Guard(
        model,
        torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01),
        run=run,
        policy="record",
        digest_budget=None if whole else 0.0,
        shadow=(torch.randn(3, 6), lambda model, batch: model(batch).square().mean()),
        shadow_every=4,
    )
    train(model, guard._optimizers[0], guard)
    ((_, path),) = rings(run)
    content = path.read_bytes()
    guard.close()
    numel = {layer.id: layer.numel for layer in guard._place.ranks.newest().layers}
    left = left_tables(content, numel)
    assert left["steps"].column("step").to_pylist() == list(range(STEPS))
    for table in ("steps", "layers", "shadow", "digests"):
        recorded = read(run, table, (0, STEPS))
        kept = left.get(table)
        if kept is None:
            assert recorded.num_rows == 0
            continue
        both = duckdb.sql("SELECT count(*) FROM (FROM recorded EXCEPT ALL FROM kept)").fetchall()
        more = duckdb.sql("SELECT count(*) FROM (FROM kept EXCEPT ALL FROM recorded)").fetchall()
        assert (table, both, more) == (table, [(0,)], [(0,)])
    assert whole == ("digests" in left)


@pytest.mark.parametrize("reduces", [True, False])
def test_shards_and_reduced_gradients(rng: np.random.Generator, reduces: bool) -> None:
    """Of ranks of a mesh: what a frame makes is what is made of the evidence itself."""
    places = [Placement("sharded", 2), Placement(), Placement("replicated", 4), Placement()]
    order = np.array([3, 5, 6, 9], dtype=np.int32)
    numel = dict(zip(order.tolist(), [10, 20, 30, 40], strict=True))
    own, reduced = rng.random((4, 5)), rng.random((2, 5))
    evidence = BeforeStep(
        step=7, time=1.0, step_seconds=None, lr=0.5, losses=None, accumulation=1, batches=(),
        tokens=None, digests=NO_DIGESTS, digest_rows=HostCopy(NO_DIGESTS.rows),
        scale=HostCopy(torch.tensor(4.0)),
        gradients=(
            Gradients([0, 1, 2, 3], HostCopy(own), False),
            Gradients([1, 3], HostCopy(torch.from_numpy(reduced)), True),
        ),
    )  # fmt: skip
    expected = layer_rows(
        evidence.sums(), 4.0, np.array(list(numel.values())), Held(places),
        replicas=2, reduces=reduces,
    )  # fmt: skip
    packed = before_frame(
        1, evidence, order, Held(places), replicas=2, reduces=reduces, digests=True
    )
    *layers, steps = rows_of(msgpack.unpackb(msgpack.packb(packed)), numel)
    assert steps.columns["grad_norm"] == expected[-1].total_norm
    assert len(layers) == len(expected)
    for rows, part in zip(layers, expected, strict=True):
        np.testing.assert_array_equal(rows.columns["layer"], order[part.rows])
        np.testing.assert_array_equal(rows.columns["norm"], part.measures[:, 0])
        assert rows.columns["scope"] == part.scope
        np.testing.assert_array_equal(rows.columns["copies"], part.copies)


def test_a_ring_grows_with_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer, run=tmp_path / "run", policy="record") as guard:
        for step in range(8):
            if step == 4:
                for _ in range(900):
                    model.append(nn.Linear(3, 3))
                optimizer.add_param_group({"params": list(model[1:].parameters())})
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        numel = {layer.id: layer.numel for layer in guard._place.ranks.newest().layers}
        steps = []
        for _, path in rings(tmp_path / "run"):
            steps += left_tables(path.read_bytes(), numel)["steps"].column("step").to_pylist()
    assert sorted(steps) == list(range(8))
    assert rings(tmp_path / "run") == []
