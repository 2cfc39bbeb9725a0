"""The store's benchmarks: their rows, how they check an answer, and a short run of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pyarrow as pa
import pytest

from sdc_guard import RunReader
from sdc_guard.store.health import Health
from sdc_guard.store.writer import FLUSH_STEPS, Writer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import store  # noqa: E402 - because the benchmarks are no package
import store_scale  # noqa: E402 - because the benchmarks are no package
import trace_queries  # noqa: E402 - because the benchmarks are no package
import trace_rows  # noqa: E402 - because the benchmarks are no package

LAYERS, STEPS = 9, 620


def run_benchmark(script: str, *options: object) -> tuple[str, dict[str, Any]]:
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


def test_the_noise_is_uniform_and_every_place_has_its_own() -> None:
    steps, layers = np.repeat(np.arange(500), 40), np.tile(np.arange(40), 500)
    found = trace_rows.noise(steps, layers)
    assert len(np.unique(found)) == len(found)
    assert (found.min(), found.max()) == pytest.approx((0, 1), abs=0.001)
    counts = np.histogram(found, bins=10, range=(0, 1))[0]
    assert counts == pytest.approx(2000, rel=0.1)
    for other in (trace_rows.noise(steps, layers, 1), trace_rows.noise(steps, layers, 0, 1)):
        assert not np.isin(found, other).any()


def test_planted_norms_are_a_thousand_times_too_large_and_no_others() -> None:
    steps, layers = np.repeat(np.arange(STEPS), LAYERS), np.tile(np.arange(LAYERS), STEPS)
    ratio = trace_rows.norms_planted(steps, layers, LAYERS) / trace_rows.norms(steps, layers)
    hit = ratio > 1
    assert ratio[hit] == pytest.approx(1000)
    where = list(zip(steps[hit].tolist(), layers[hit].tolist(), strict=True))
    assert where == trace_rows.planted(LAYERS, STEPS)
    assert [step for step, _ in where] == [50, 150, 250, 350, 450, 550]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """What the queries find in a run."""
    run = trace_rows.make_run(tmp_path_factory.mktemp("trace") / "run", LAYERS)
    health = Health()
    writer = Writer(run, 0, health)
    writer.append("layers", **trace_rows.layer_columns(range(STEPS), LAYERS))
    writer.append("steps", **trace_rows.step_columns(range(STEPS)))
    writer.close()
    assert (health.written, health.dropped) == (STEPS * LAYERS + STEPS, 0)
    with RunReader(run) as reader:
        return {name: query(reader, 3) for name, query in trace_queries.QUERIES.items()}


def test_true_answers_pass(answers: dict[str, pa.Table]) -> None:
    sizes = {name: found.num_rows for name, found in answers.items()}
    assert sizes == {"one layer": STEPS, "last 500 steps": 500 * LAYERS, "top anomalies": 20}
    for name, found in answers.items():
        assert trace_queries.wrong(name, found, LAYERS, 3, STEPS) is None
        # a reader may see more than was acknowledged when it looked
        assert trace_queries.wrong(name, found, LAYERS, 3, STEPS - 100) is None


@pytest.mark.parametrize("name", list(trace_queries.QUERIES))
def test_answers_without_a_row_or_with_nothing_are_wrong(
    answers: dict[str, pa.Table], name: str
) -> None:
    found = answers[name]
    for short in (found.slice(1), found.slice(0, 0)):
        assert trace_queries.wrong(name, short, LAYERS, 3, STEPS)
    twice = pa.concat_tables([found, found.slice(0, 1)])
    assert name == "top anomalies" or trace_queries.wrong(name, twice, LAYERS, 3, STEPS)


@pytest.mark.parametrize("name", ["one layer", "last 500 steps"])
def test_answers_that_end_early_or_hold_another_value_are_wrong(
    answers: dict[str, pa.Table], name: str
) -> None:
    found = answers[name]
    said = trace_queries.wrong(name, found, LAYERS, 3, STEPS + 1)
    assert said == f"ends at step {STEPS - 1} of {STEPS + 1} acknowledged"
    column = "value" if name == "one layer" else "norm"
    norm = found[column].to_numpy().copy()
    norm[7] = np.nextafter(norm[7], 9)
    changed = found.set_column(found.column_names.index(column), column, [pa.array(norm)])
    assert trace_queries.wrong(name, changed, LAYERS, 3, STEPS) == "other values"


def test_a_short_run_of_the_store(tmp_path: Path) -> None:
    sizes = ["--layers", 12, "--steps", 40, "--seconds", 1, "--readers", 2, "--pause", 0]
    sizes += ["--rounds", 2, "--block", 2, "--operations", 50, "--repeats", 2]
    printed, found = run_benchmark("store.py", *sizes, "--json", tmp_path / "store.json")
    assert set(found) == set(store.PARTS)
    assert found["write"]["rows"] == 480
    assert found["write"]["segments"] in (
        1,
        2,
    )  # the writer wakes at 20 steps, and takes what is there
    assert found["write"]["enqueue_us"]["append"]["count"] == 40
    assert [loop["loop"] for loop in found["slowdown"]] == ["small operations", "GPT 1M"]
    assert [row["arm"] for row in found["slowdown"][1]["arms"]] == [
        "bare again",
        "writer, 12 layers",
    ]
    assert (found["live"]["errors"], found["live"]["writer"]["dropped"]) == (0, 0)
    assert found["live"]["reader_ms"]["one layer"]["count"] >= 2
    assert (found["sealed"]["rows"], found["sealed"]["errors"]) == (480, 0)
    assert (found["large"]["rows"], found["large"]["errors"]) == (9600, 0)
    assert "lock errors 0, wrong or failed answers 0" in printed


def test_a_short_run_at_scale(tmp_path: Path, seed: int) -> None:
    sizes = ["--ranks", 12, "--layers", 5, "--steps", 60, "--seal", "--seed", seed]
    printed, found = run_benchmark("store_scale.py", *sizes, "--json", tmp_path / "scale.json")
    flushes = -(-60 // FLUSH_STEPS)
    assert (found["rows"], found["files"]) == (12 * 5 * 60, 12 * flushes * 2)
    assert set(found["ways"]) == {"direct", "reader", "sealed"}
    for way in found["ways"].values():
        rank, layer, z = way["answer"][0]
        assert [rank, layer] == found["hidden"]
        assert z > 0
    assert found["seals"] >= 24
    assert "WRONG" not in printed


def test_what_is_hidden_is_drawn_by_the_seed() -> None:
    drawn = {store_scale.hidden(1024, 200, seed) for seed in range(20)}
    assert len(drawn) == 20
    assert store_scale.hidden(1024, 200, 3) == store_scale.hidden(1024, 200, 3)


def test_an_answer_names_its_first_row_and_an_empty_one_names_nobody() -> None:
    assert store_scale.named({"answer": [(5, 1, 10.0), (6, 2, -9.0)]}) == (5, 1)
    assert store_scale.named({"answer": []}) is None


def test_a_wrong_option_of_the_store_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, option in (
        (store.arguments, ["--steps", "0"]),
        (store.arguments, ["--layers", "2"]),
        (store_scale.arguments, ["--ranks", "3"]),
        (store_scale.arguments, ["--limit", "0"]),
    ):
        with pytest.raises(SystemExit) as ended:
            arguments(option)
        assert ended.value.code == 2
        assert "must be at least" in capsys.readouterr().err
