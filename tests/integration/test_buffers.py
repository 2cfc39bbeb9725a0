"""Buffers beside parameters: which changes are accused, and what ordinary training does to them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import attach, batches, loss_of, rows, same_bits, sound, train

from forensics.recorded import from_trace
from sdc_guard import Guard, RunReader
from sdc_guard.inject.bits import flip_bit


class Net(nn.Module):
    """A mask at rest, averages of a batch norm, and one that is written past the counters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.ones(8))
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("rebound", torch.zeros(8), persistent=False)
        self.register_buffer("missing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)) * self.mask
        if self.training:
            self.average.data.mul_(0.9).add_(x.detach().mean(0))
        self.rebound = x.detach().mean(0)
        return self.last(x)


NAMES = ["average", "mask", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var"]
_FOUND = """
    SELECT step, name, detail->>'kind', (detail->>'index')::INT, detail->'bits' FROM alerts
    JOIN layer_names USING (layer) WHERE detector = 'carried_digest' AND severity = 'proven'
"""
_COMPARED = """
    SELECT step, count(*)::INT FROM digests WHERE kind = 'buffer' AND phase = 'before'
    GROUP BY step ORDER BY step
"""


def start(run: Path, **options: object) -> tuple[Net, torch.optim.Optimizer, Guard]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, attach(model, optimizer, run, digest_buffers=True, **options)


@pytest.mark.parametrize("budget", [None, 0.2])
def test_ordinary_training_and_evaluation_accuse_nothing(
    budget: float | None, tmp_path: Path
) -> None:
    model, optimizer, guard = start(tmp_path, digest_budget=budget)
    twin = Net()
    other = torch.optim.AdamW(twin.parameters())
    for part in range(4):
        train(model, optimizer, batches(3, seed=part), guard)
        train(twin, other, batches(3, seed=part))
        for each in (model, twin):
            each.mask.mul_(0.5)  # by the script, as torch sees it
            each.eval()
            each(batches(1, seed=9)[0][0])
            each.train()
            if part == 2:
                with torch.no_grad():
                    each(batches(1, seed=8)[0][0])  # averages made anew for an evaluation
    same_bits(model, twin)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    kept = rows(
        tmp_path,
        "SELECT DISTINCT name FROM digests JOIN layer_names USING (layer)"
        " WHERE kind = 'buffer' AND phase = 'before' AND step = 11 ORDER BY name",
    )
    assert [name for (name,) in kept] == sorted([*NAMES, "rebound"])
    with RunReader(tmp_path) as reader:
        assert not {layer.name for layer in reader.run_file.layers} & {*NAMES, "rebound"}
        assert {layer.name for layer in reader.run_file.buffers} == {*NAMES, "rebound"}


@pytest.mark.parametrize("name", ["norm.running_var", "average", "mask"])
def test_a_flip_after_a_step_is_named_with_its_element_and_bit(name: str, tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path, digest_budget=None)
    train(model, optimizer, batches(4), guard)
    flip_bit(dict(model.named_buffers())[name], 5, 3)
    train(model, optimizer, batches(3, seed=2), guard)
    guard.close()
    sound(guard)
    assert rows(tmp_path, _FOUND) == [(4, name, "buffer", 5, "[3]")]
    with RunReader(tmp_path) as reader:
        proven = from_trace(reader)
    assert proven is not None
    assert (proven.first_corrupt, proven.kind) == (4, "state at rest")
    assert [(tensor.kind, tensor.name) for tensor in proven.tensors] == [("buffer", name)]


class Codes(nn.Module):
    """Writes to two buffers past their counters, from a call on."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.how, self.calls = how, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x, writes = self.first(x), self.calls > 4
        if self.how == "norm":
            x = nn.functional.batch_norm(x, self.mean, self.var, training=writes)
        elif writes and self.how == "numpy":
            self.mean.numpy()[:] += 1
        elif self.calls % 3 == 0 and self.how == "restart":
            self.mean.data[0].copy_(x.detach()[0, 0])
        return self.last(x + self.mean)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("how", ["norm", "numpy", "restart"])
def test_a_forward_that_begins_to_write_is_not_accused(
    how: str, micro_batches: int, tmp_path: Path
) -> None:
    model = Codes(how)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_buffers=True, policy="skip")
    at_first = model.mean.clone()
    for data in batches(10):
        for _ in range(micro_batches):
            loss_of(model, data).backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    sound(guard)
    assert not torch.equal(model.mean, at_first)
    assert guard.health.alerts == {}
    assert rows(tmp_path, "SELECT count(*) FROM steps WHERE skipped") == [(0,)]
    assert rows(tmp_path, _COMPARED) == [(step, 2) for step in range(1, 10)]


def test_a_flip_is_told_once_and_a_later_one_again(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path)
    for part in range(2):
        train(model, optimizer, batches(3, seed=part), guard)
        flip_bit(model.mask, 2, 7)
    train(model, optimizer, batches(4, seed=2), guard)
    guard.close()
    sound(guard)
    assert sorted(rows(tmp_path, _FOUND)) == [(step, "mask", "buffer", 2, "[7]") for step in (3, 6)]


def test_a_part_that_is_called_by_itself_may_write(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path)
    for part in range(3):
        train(model, optimizer, batches(3, seed=part), guard)
        model.norm(torch.randn(4, 8, generator=torch.Generator().manual_seed(part)))
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    assert [step for step, _ in rows(tmp_path, _COMPARED)] == [1, 2, 4, 5, 7, 8]


def test_written_on_purpose_and_refreshed(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path)
    train(model, optimizer, batches(3), guard)
    model.mask.data[2] = 0.5
    model.norm.running_mean.data.zero_()
    guard.refresh()
    train(model, optimizer, batches(3, seed=2), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}


def test_copies_of_the_model_record_nothing_and_closing_leaves_no_hook(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path)
    train(model, optimizer, batches(2), guard)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for each in (twin, loaded):
        each.mask.data.zero_()
        loss_of(each, batches(1)[0])
    train(model, optimizer, batches(2), guard)
    guard.refresh()  # looks at the model anew
    assert len(model._forward_pre_hooks) == 1
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    assert not model._forward_pre_hooks


def outside(model: nn.Module) -> nn.Module:
    return torch.compile(model, fullgraph=True, backend="eager")


def in_place(model: nn.Module) -> nn.Module:
    model.compile(fullgraph=True, backend="eager")
    return model


@pytest.mark.parametrize("wrap", [outside, in_place])
def test_a_compiled_model_is_not_broken_into_parts_nor_compared(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_buffers=True)
    compiled = wrap(model)
    train(compiled, optimizer, batches(4), guard)
    if wrap is outside:
        model(batches(1)[0][0])  # told, but after one that was not
    train(compiled, optimizer, batches(2), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    assert rows(tmp_path, _COMPARED) == []
    told = rows(tmp_path, "SELECT step, kind FROM events WHERE detail LIKE '%buffers%'")
    assert told == [(1, "capture")]


def test_a_table_that_the_forward_makes_anew_now_and_then(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path, digest_budget=None)

    def renew(*_: object) -> None:
        if guard.step == 4:
            model.mask.mul_(0.5)
        if guard.step == 7:
            model.mask = torch.full((8,), 0.7)

    model.norm.register_forward_pre_hook(renew)
    train(model, optimizer, batches(10), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}


def test_steps_that_a_scaler_leaves_out_do_not_end_the_comparisons(tmp_path: Path) -> None:
    model, optimizer, guard = start(tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for step, data in enumerate(batches(12)):
        if step == 6:
            flip_bit(model.mask, 0, 3)
        scaler.scale(loss_of(model, data) * (1e4 if step in (0, 3, 4) else 1e-4)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    sound(guard)
    assert rows(tmp_path, "SELECT step FROM steps WHERE skipped ORDER BY step") == [
        (0,),
        (3,),
        (4,),
    ]
    # what such a step leaves is read when the next forward has begun
    assert [step for step, _ in rows(tmp_path, _COMPARED)] == [2, 3, 6, 7, 8, 9, 10, 11]
    assert [row[:2] for row in rows(tmp_path, _FOUND)] == [(6, "mask")]
