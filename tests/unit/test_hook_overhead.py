"""The overhead benchmark: its models, its statistics, and one short real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import hook_models  # noqa: E402 - because the benchmarks are no package
import hook_overhead  # noqa: E402 - because the benchmarks are no package


@pytest.mark.parametrize(
    ("name", "tensors", "millions"),
    [("gpt-21m", 76, 21), ("gpt-1m", 52, 0.9), ("mlp", 12, 1.5), ("resnet", 65, 0.27)],
)
def test_sizes_of_the_models(name: str, tensors: int, millions: float) -> None:
    parameters = list(hook_models.TASKS[name].make_model().parameters())
    assert len(parameters) == tensors
    assert sum(p.numel() for p in parameters) / 1e6 == pytest.approx(millions, rel=0.05)


@pytest.mark.parametrize("name", ["gpt-1m", "mlp", "resnet"])
def test_the_models_learn(name: str) -> None:
    task = hook_models.TASKS[name]
    model, batch = task.make_model(), task.make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = hook_models.loss_fn(model, batch)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]


def test_an_overhead_is_the_median_of_paired_ratios(rng: np.random.Generator) -> None:
    bare = rng.uniform(1, 100, size=41)  # what slows a round slows both
    found = hook_overhead.overhead(list(1.03 * bare), list(bare), rng)
    assert found == pytest.approx({"percent": 3, "low": 3, "high": 3})
    noisy = bare * rng.normal(1.03, 0.01, size=41)
    found = hook_overhead.overhead(list(noisy), list(bare), rng)
    assert found["low"] < found["percent"] < found["high"]
    assert found["percent"] == pytest.approx(100 * np.median(noisy / bare - 1))
    assert 0.2 < found["high"] - found["low"] < 1.5


def test_a_histogram_counts_every_element() -> None:
    assert sum(hook_overhead.histogram(torch.randn(1000))) == 1000


# as where it is not installed: its import takes longer than all the rest
WITHOUT_LIGHTNING = """
import sys
sys.modules["lightning"] = None
sys.path.insert(0, sys.argv.pop(1))
import hook_overhead
hook_overhead.main()
"""


def test_a_short_run(tmp_path: Path) -> None:
    file = tmp_path / "overhead.json"
    options = ["--models", "mlp", "--rounds", "2", "--steps", "1", "--json", file]
    done = subprocess.run(
        [preloaded.python(), "-c", WITHOUT_LIGHTNING, BENCHMARKS, *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    (result,) = json.loads(file.read_text())["results"]
    assert (result["tensors"], result["rounds"], result["steps_per_round"]) == (12, 2, 1)
    arms = [row["arm"] for row in result["arms"]]
    assert arms[:2] == ["bare again", "guard"]
    assert "lightning grad_norm" not in arms
    assert set(arms) >= {"guard, everything", "guard, blocking", "clip_grad_norm_", "histograms"}
    assert all(row["wall"]["low"] <= row["wall"]["high"] for row in result["arms"])
    assert "bare again" in done.stdout
    assert "MLP 1.5M: 1.46M parameters" in done.stdout


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--rounds", "0"], ["--steps", "0"]):
        with pytest.raises(SystemExit):
            hook_overhead.arguments(option)
    assert "must be at least 1" in capsys.readouterr().err
