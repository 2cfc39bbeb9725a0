"""Rows of the shape that a guard records, computed from step, layer and rank.

A reader can compute them again and so check every value that it gets. They are as hard to compress
as measured ones: their low bits look random.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdc_guard.store.run_file import Attempt, Layer, RunFile

PLANTED = 20  # at most: as many as the query for anomalies returns
PLANTED_EVERY = 100  # steps
PLANTED_FIRST = 50  # a layer's spread is known by then
_PLANTED_FACTOR = 1000.0


def make_run(run: Path, layers: int, world_size: int = 1) -> Path:
    """A run's folder with its run.json and no trace."""
    run.mkdir(parents=True)
    named = [
        Layer(
            number, f"blocks.{number // 12}.tensor.{number % 12}.weight", (), (8, 8), "float32", 64
        )
        for number in range(layers)
    ]
    RunFile(run.name, world_size, tuple(named), (Attempt(1, 0, 0.0),)).write(run)
    return run


def noise(steps: Any, layers: Any, rank: int = 0, salt: int = 0) -> NDArray[np.float64]:
    """Numbers in [0, 1) that look random: splitmix64 of where they belong."""
    x = np.asarray(steps, dtype=np.uint64) << np.uint64(32)
    x = x ^ np.asarray(layers, dtype=np.uint64) ^ np.uint64((rank << 20) + (salt << 60))
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def planted(layers: int, before: int) -> list[tuple[int, int]]:
    """Where one gradient is a thousand times too large: (step, layer), steps below `before`."""
    steps = range(PLANTED_FIRST, before, PLANTED_EVERY)
    return [(step, 7 * step % layers) for step in steps][:PLANTED]


def norms(steps: Any, layers: Any, rank: int = 0) -> NDArray[np.float64]:
    """Norms without anything planted: of a layer, between one and three times its smallest."""
    return (1 + np.asarray(layers) % 7) * (0.5 + noise(steps, layers, rank))


def norms_planted(steps: Any, layers: Any, count: int) -> NDArray[np.float64]:
    """Norms with what `planted` says for a run of `count` layers."""
    found = norms(steps, layers)
    steps, layers = np.broadcast_arrays(steps, layers)
    turn = steps - PLANTED_FIRST
    hit = (turn >= 0) & (turn % PLANTED_EVERY == 0) & (turn < PLANTED * PLANTED_EVERY)
    return np.where(hit & (layers == 7 * steps % count), found * _PLANTED_FACTOR, found)


def layer_columns(
    steps: Sequence[int], layers: int, rank: int = 0, *, plant: bool = True
) -> dict[str, Any]:
    """Columns of the table "layers", in the order in which a guard records them.

    Args:
        steps: all layers of each of them.
        layers: how many.
        rank: whose.
        plant: whether `planted` counts.
    """
    step = np.repeat(np.asarray(steps, dtype=np.int64), layers)
    layer = np.tile(np.arange(layers, dtype=np.int32), len(steps))
    norm = norms_planted(step, layer, layers) if plant else norms(step, layer, rank)
    return {
        "attempt": 1,
        "step": step,
        "layer": layer,
        "norm": norm,
        "max_abs": norm * (0.1 + 0.01 * noise(step, layer, rank, 1)),
        "mean_abs": norm * (0.01 + 0.001 * noise(step, layer, rank, 2)),
        "nonfinite": np.zeros(len(step), dtype=np.int64),
        "zeros": (64 * noise(step, layer, rank, 3)).astype(np.int64),
        "scope": "local",
        "copies": 1,
    }


def step_columns(steps: Sequence[int], rank: int = 0) -> dict[str, Any]:
    """Columns of the table "steps"."""
    numbers = np.asarray(steps, dtype=np.int64)
    return {
        "attempt": 1,
        "step": numbers,
        "time": 1.7e9 + numbers + noise(numbers, 0, rank),
        "loss": 2.0 + noise(numbers, 1, rank),
        "lr": 1e-3,
        "grad_norm": 1.0 + noise(numbers, 2, rank),
        "skipped": False,
        "accumulation": 1,
        "batch_hash": (2.0**62 * noise(numbers, 3, rank)).astype(np.int64),
        "step_seconds": noise(numbers, 4, rank),
        "tokens": 4096,
    }


def digest_columns(steps: Sequence[int], tensors: int, rank: int = 0) -> dict[str, Any]:
    """Columns of the table "digests": before and after each step, of `tensors` tensors."""
    step = np.repeat(np.asarray(steps, dtype=np.int64), 2 * tensors)
    row = np.tile(np.arange(2 * tensors, dtype=np.int32), len(steps))
    sums = [(2.0**62 * noise(step, row, rank, salt)).astype(np.int64) for salt in range(3)]
    return {
        "attempt": 1,
        "step": step,
        "phase": (["before"] * tensors + ["after"] * tensors) * len(steps),
        "kind": [("param", "exp_avg", "exp_avg_sq")[number % 3] for number in row.tolist()],
        "layer": row % tensors,
        "h": sums[0],
        "s1": sums[1],
        "s2": sums[2],
    }
