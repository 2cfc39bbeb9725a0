"""The benchmark that takes turns step by step: its estimate, and a short real run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import step_overhead

import sdc_guard.pending


def test_a_cost_is_found_among_interruptions(rng: np.random.Generator) -> None:
    rounds = 4000
    slow = rng.uniform(1, 1.2, size=rounds)  # of the machine, from round to round
    bare, again, arm = (slow + rng.normal(0, 0.01, size=rounds) for _ in range(3))
    arm += 0.02 * np.median(bare)
    arm[:: rounds // 20] += 50  # twenty steps were interrupted
    found = step_overhead.cost(arm, bare, again, rng)
    assert found["low"] < 2.0 < found["high"]
    assert found["percent"] == pytest.approx(2.0, abs=0.1)
    assert found["high"] - found["low"] < 0.2
    same = step_overhead.cost(again, bare, bare, rng)
    assert same["low"] < 0.0 < same["high"]


def test_what_comes_once_in_sixteen_turns_is_a_cost(rng: np.random.Generator) -> None:
    bare, again, arm = (rng.normal(1, 0.001, size=1600) for _ in range(3))
    arm[::16] += 0.16
    found = step_overhead.cost(arm, bare, again, rng)
    assert found["percent"] == pytest.approx(1.0, abs=0.05)


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = sdc_guard.pending.JUDGE_SECONDS
    args = step_overhead.arguments(["--models", "mlp", "--seconds", "0.1", "--steps", "1"])
    step_overhead.print_table("mlp", args, tmp_path)
    head, *rows = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("MLP 1.5M: bare step")
    assert [row.split("  ")[0] for row in rows] == [
        "cost, percent", "bare again", "guard", "clip_grad_norm_", "guard less clip",
    ]  # fmt: skip
    assert waits == sdc_guard.pending.JUDGE_SECONDS


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_overhead.arguments(["--steps", "0"])
    assert "--steps must be at least 1" in capsys.readouterr().err
