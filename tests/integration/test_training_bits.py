"""Training with the guard is bit-identical to training without, and resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SAMPLE, STEPS, small_sample, train

from sdc_guard import load_checkpoint


def same_bits(one: object, two: object, path: str = "") -> int:
    """Compare two nested states bit by bit; returns the number of tensors compared."""
    if isinstance(one, torch.Tensor):
        assert isinstance(two, torch.Tensor)
        assert one.dtype == two.dtype, path
        width = {1: torch.uint8, 4: torch.int32, 8: torch.int64}[one.element_size()]
        assert torch.equal(one.reshape(-1).view(width), two.reshape(-1).view(width)), path
        return 1
    if isinstance(one, dict):
        assert isinstance(two, dict)
        assert one.keys() == two.keys(), path
        return sum(same_bits(value, two[key], f"{path}.{key}") for key, value in one.items())
    if isinstance(one, list):
        assert isinstance(two, list)
        return sum(same_bits(a, b, path) for a, b in zip(one, two, strict=True))
    assert one == two, path
    return 0


@pytest.mark.parametrize(("script", "steps"), [(small_sample, 200), (lambda: SAMPLE, 8)])
def test_training_with_and_without_the_guard_ends_in_the_same_bits(
    tmp_path: Path, script: Callable[[], Path], steps: int
) -> None:
    options = ["--steps", steps, "--every", steps]
    train(tmp_path / "with", *options, script=script())
    train(tmp_path / "without", *options, "--no-guard", script=script())
    guarded = load_checkpoint(tmp_path / "with" / "archive" / f"step={steps:06d}")
    bare = torch.load(tmp_path / "without" / f"step-{steps:06d}.pt", weights_only=True)
    # 52 parameters and the tied head, step and two moments of each parameter, generator state
    assert same_bits(guarded, bare) == 53 + 3 * 52 + 1


def test_a_resumed_run_ends_in_the_same_bits(clean_run: Path, tmp_path: Path) -> None:
    start = clean_run / "archive" / "step=000020"
    train(tmp_path / "resumed", "--resume", start, "--until", STEPS)
    once = load_checkpoint(clean_run / "archive" / f"step={STEPS:06d}")
    again = load_checkpoint(tmp_path / "resumed" / "archive" / f"step={STEPS:06d}")
    assert same_bits(once, again) > 200


def test_the_sample_trains_on_text_that_every_machine_has() -> None:
    text = (ROOT / "sample_runs" / "tiny_gpt.py").read_text(encoding="utf-8")
    assert "stdlib" in text
    assert "http" not in text
