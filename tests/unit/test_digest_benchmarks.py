"""The benchmarks of the digest: the faults that they make, what they count, a short run of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import digest_faults  # noqa: E402 - because the benchmarks are no package
import digest_speed  # noqa: E402 - because the benchmarks are no package


def run_benchmark(script: str, *options: object) -> tuple[str, Any]:
    """What it printed, and its results."""
    file = Path(str(options[options.index("--json") + 1]))
    done = subprocess.run(
        [preloaded.python(), BENCHMARKS / script, *map(str, options)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(file.read_text())["results"]


@pytest.mark.parametrize("many", [1, 2, 8, 32])
def test_bit_faults_hit_as_many_elements_as_they_say(many: int, rng: np.random.Generator) -> None:
    words = rng.integers(0, 2**16, (64, 64), dtype=np.uint16)
    bits, places = set(), set()
    for number in range(300):
        draw = digest_faults.Draw(number, many)
        wrong = digest_faults.damaged(words, digest_faults.same_bit, draw, rng)
        assert wrong is not None
        changed = np.flatnonzero(wrong != words)
        assert len(changed) == many
        flipped = set((wrong ^ words).reshape(-1)[changed].tolist())
        assert len(flipped) == 1
        bits |= flipped
        places |= set(changed.tolist())
    assert bits == {1 << bit for bit in range(16)}
    assert len(places) > 250


def test_swaps_keep_the_elements_and_what_changes_nothing_is_no_fault(
    rng: np.random.Generator,
) -> None:
    words = rng.permutation(4096).astype(np.uint32).reshape(64, 64)
    for kind in ("swapped pairs", "swapped rows"):
        fault, numbers = digest_faults.KINDS[kind]
        for many in numbers:
            wrong = digest_faults.damaged(words, fault, digest_faults.Draw(0, many), rng)
            assert wrong is not None
            assert sorted(wrong.ravel().tolist()) == list(range(4096))
            rows = (wrong != words).any(1).sum()
            assert (
                rows == 2 * many if kind == "swapped rows" else (wrong != words).sum() == 2 * many
            )
    equal = np.ones((64, 64), dtype=np.uint8)
    for fault in (digest_faults.swaps, digest_faults.row_swaps):
        assert digest_faults.damaged(equal, fault, digest_faults.Draw(0, 8), rng) is None


def test_speeds_are_those_of_the_median_round() -> None:
    found = digest_speed.results(
        {"digest": [1.0, 2.0, 4.0], digest_speed.BASE: [4.0, 4.0, 2.0]}, 8_000_000_000
    )
    assert found["digest"] == {"median": 4.0, "best": 8.0, "ratio": 2.0}
    assert found[digest_speed.BASE]["ratio"] == 1.0


def test_a_short_sweep_misses_nothing_that_it_counts(tmp_path: Path) -> None:
    printed, cells = run_benchmark(
        "digest_sweep.py", "--faults", 4, "--json", tmp_path / "sweep.json"
    )
    everything = cells.pop()
    assert everything["faults"] == sum(cell["faults"] for cell in cells) > 500
    assert everything["missed"]["digest"] == 0
    # an XOR sees any single flip and no swap
    for cell in cells:
        if (cell["kind"], cell["many"]) == ("same bit", 1):
            assert cell["missed"]["xor"] == cell["missed"]["hash_tensor"] == 0
        if cell["kind"].startswith("swapped"):
            assert cell["missed"]["xor"] == cell["faults"]
    assert len(printed.splitlines()) == 2 + len(cells) + 1


def test_a_short_run_of_the_speeds(tmp_path: Path) -> None:
    printed, rows = run_benchmark(
        "digest_speed.py", "--mb", 1, "--rounds", 3, "--json", tmp_path / "speed.json"
    )
    assert {"digest float32", "digest float8_e4m3fn", "xxh3", digest_speed.BASE} <= set(rows)
    assert all(row["best"] >= row["median"] > 0 for row in rows.values())
    assert len(printed.splitlines()) == 2 + len(rows)
