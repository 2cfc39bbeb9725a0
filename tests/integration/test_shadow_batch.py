"""The pinned batch itself, and what its loss does not see."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from training_parts import attach, batches, loss_of, net, rows, sound, train

from sdc_guard.digest import digest_tensor
from sdc_guard.inject.bits import flip_bit
from sdc_guard.signals.batch import batch_digest, fold

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sample_runs"))
import tiny_gpt


def test_a_pinned_batch_that_changes_is_accused_and_the_model_is_not(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    held = batches(1, seed=3)[0]
    guard = attach(model, optimizer, tmp_path, shadow=(held, loss_of), shadow_every=1)
    train(model, optimizer, batches(3), guard)
    assert guard._shadow is not None
    flip_bit(guard._shadow._batch[0], 7, 30)
    train(model, optimizer, batches(3, seed=2), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {("shadow_batch", "proven"): 1}
    ((step, detail),) = rows(tmp_path, "SELECT step, detail->>'text' FROM alerts")
    assert step == 3
    assert detail.startswith("input differs")
    digest = batch_digest(held)
    assert digest is not None
    other = batch_digest(guard._shadow._batch)
    assert other is not None
    hashes = rows(tmp_path, "SELECT batch_hash FROM shadow ORDER BY step")
    assert hashes == [(fold(digest),)] * 3 + [(fold(other),)] * 3


def test_a_batch_that_changes_between_the_two_passes_is_told_as_the_input(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    calls = []

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:  # one pass to learn what is written, then two a step
            assert guard._shadow is not None
            flip_bit(guard._shadow._batch[0], 0, 30)
        return loss_of(model, batch)

    guard = attach(model, optimizer, tmp_path, shadow=(batches(1)[0], loss_fn), shadow_every=1)
    train(model, optimizer, batches(4), guard)
    guard.close()
    sound(guard)
    assert guard.health.alerts == {("shadow_batch", "proven"): 1}


@pytest.mark.parametrize(
    ("bit", "seen_at_least", "seen_at_most"),
    [(0, 0, 10), (10, 0, 60), (20, 150, 200), (30, 150, 200)],
)
def test_low_bits_are_seen_by_the_digest_and_mostly_not_by_the_loss(
    bit: int, seen_at_least: int, seen_at_most: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )
    generator = torch.Generator().manual_seed(seed)
    batch = (
        torch.randn(64, 32, generator=generator),
        torch.randint(0, 8, (64,), generator=generator),
    )
    weight = model[2].weight
    sound_loss, sound_digest = loss_of(model, batch).item(), digest_tensor(weight)
    seen = 0
    for index in torch.randperm(weight.numel(), generator=generator)[:200].tolist():
        flip_bit(weight, index, bit)
        seen += loss_of(model, batch).item() != sound_loss
        assert digest_tensor(weight) != sound_digest
        flip_bit(weight, index, bit)
    print(f"bit {bit}: {seen} of 200 changed the loss")
    assert seen_at_least <= seen <= seen_at_most
    assert digest_tensor(weight) == sound_digest


@pytest.mark.parametrize(("bit", "last_place"), [(0, True), (30, False)])
def test_of_a_lowest_bit_the_sample_models_loss_shows_no_more_than_rounding(
    bit: int, last_place: bool
) -> None:
    """Measured over 180 flips: the loss equal or off by its last bit; of bit 30 by far more."""
    torch.manual_seed(1)
    model = tiny_gpt.TinyGPT().eval()
    batch = tiny_gpt.Text(2).next()
    weight = model.get_parameter("blocks.1.qkv.weight")

    @torch.no_grad()
    def loss() -> float:
        return float(tiny_gpt.loss_fn(model, batch))

    sound_loss, sound_digest = loss(), digest_tensor(weight)
    assert loss() == sound_loss
    unit = float(np.spacing(np.float32(sound_loss)))
    for index in torch.randperm(weight.numel())[:12].tolist():
        flip_bit(weight, index, bit)
        moved = abs(loss() - sound_loss) / unit
        assert digest_tensor(weight) != sound_digest
        flip_bit(weight, index, bit)
        assert (moved <= 2) == last_place, (index, moved)
