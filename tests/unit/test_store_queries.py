"""The usual questions, against what numpy says of the same numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from segment_writers import SegmentWriter

from sdc_guard import RunReader
from sdc_guard.errors import UsageError
from sdc_guard.store import queries
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.writer import Health, Writer

LAYERS, STEPS = 5, 3000


@pytest.fixture
def norms(rng: np.random.Generator) -> np.ndarray:
    """Norms of STEPS × LAYERS, with a spike, a dip, a NaN and an infinity."""
    values = np.exp(rng.normal(size=(STEPS, LAYERS)) * 0.3 + np.arange(LAYERS))
    values[1234, 2] *= 5000
    values[2000, 1] /= 800
    values[777, 3], values[2999, 0] = math.nan, math.inf
    values[5, 4] = 0.0
    return values


@pytest.fixture(params=[False, True], ids=["segments", "sealed"])
def run(empty_run: Path, norms: np.ndarray, request: pytest.FixtureRequest) -> Path:
    layers = tuple(
        Layer(n, f"block.{n}", (f"tied.{n}",), (4,), "float32", 4) for n in range(LAYERS)
    )
    RunFile("run", 1, layers, (Attempt(1, 0, 0.0),)).write(empty_run)
    writer = SegmentWriter(empty_run, "w")
    for first in range(0, STEPS, 500):
        steps = np.arange(first, first + 500)
        writer.write(
            "layers", steps.repeat(LAYERS), layer=np.tile(np.arange(LAYERS), 500),
            norm=norms[first : first + 500].ravel(), scope=["local"] * (500 * LAYERS),
            max_abs=norms[first : first + 500].ravel() / 2, nonfinite=[0] * (500 * LAYERS),
        )  # fmt: skip
    if request.param:
        seal_run(empty_run)
    return empty_run


def test_one_layer_over_all_steps(run: Path, norms: np.ndarray) -> None:
    with RunReader(run) as reader:
        for layer in (2, "block.2", "tied.2"):
            found = queries.layer_over_steps(reader, layer)
            assert found["step"].to_pylist() == list(range(STEPS))
            assert found["value"].to_pylist() == norms[:, 2].tolist()
        part = queries.layer_over_steps(reader, 2, measure="max_abs", first=10, last=12)
        assert part.to_pylist() == [{"step": s, "value": norms[s, 2] / 2} for s in (10, 11, 12)]
        assert queries.layer_over_steps(reader, 2, rank=1).num_rows == 0
        assert queries.layer_over_steps(reader, 2, measure="mean_abs").num_rows == 0


@pytest.mark.parametrize("points", [3, 4, 100, 300, 2999])
def test_spikes_survive_the_thinning(run: Path, norms: np.ndarray, points: int) -> None:
    with RunReader(run) as reader:
        thinned = {n: queries.layer_over_steps(reader, n, points=points) for n in range(LAYERS)}
    for layer, found in thinned.items():
        steps, values = found["step"].to_numpy(), found["value"].to_numpy()
        assert 0 < len(steps) <= points
        assert (np.diff(steps) > 0).all()
        np.testing.assert_array_equal(values, norms[steps, layer])
        finite = norms[np.isfinite(norms[:, layer]), layer]
        assert np.nanmin(values) == finite.min()
        assert values[np.isfinite(values)].max() == finite.max()
    assert 777 in thinned[3]["step"].to_pylist()
    assert 2999 in thinned[0]["step"].to_pylist()


def test_every_bucket_keeps_its_ends(run: Path, norms: np.ndarray) -> None:
    with RunReader(run) as reader:
        found = queries.layer_over_steps(reader, 2, points=30)
    width = (STEPS - 1) // 10 + 1
    kept = set(found["step"].to_pylist())
    for first in range(0, STEPS, width):
        bucket = norms[first : first + width, 2]
        assert {first + int(bucket.argmin()), first + int(bucket.argmax())} <= kept
    assert len(kept) == 20


def test_few_points_are_not_thinned(run: Path) -> None:
    with RunReader(run) as reader:
        assert queries.layer_over_steps(reader, 1, last=49, points=50).num_rows == 50
        assert queries.layer_over_steps(reader, 1, points=STEPS).num_rows == STEPS
        assert queries.layer_over_steps(reader, 1, first=STEPS, points=9).num_rows == 0


def test_steps_as_far_apart_as_can_be(empty_run: Path) -> None:
    steps = [-(2**63), 0, 1, 2**63 - 1]
    SegmentWriter(empty_run, "w").write("layers", steps, layer=[0] * 4, norm=[1.0, 2.0, 3.0, 4.0])
    with RunReader(empty_run) as reader:
        found = queries.layer_over_steps(reader, "w", points=3)
        assert found["step"].to_pylist() == [-(2**63), 2**63 - 1]
        assert queries.layer_over_steps(reader, "w", points=4).num_rows == 4


def test_all_layers_of_a_window(run: Path, norms: np.ndarray) -> None:
    with RunReader(run) as reader:
        found = queries.all_layers(reader, 700, 799, measures=("norm", "max_abs", "scope"))
        assert found.column_names == ["step", "rank", "layer", "norm", "max_abs", "scope"]
        rows = found.sort_by([("step", "ascending"), ("layer", "ascending")])
        np.testing.assert_array_equal(rows["norm"].to_numpy(), norms[700:800].ravel())
        assert set(rows["scope"].to_pylist()) == {"local"}
        assert queries.all_layers(reader, 5, 4).num_rows == 0


def usual(norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z and ratio of each norm, by the formula."""
    with np.errstate(divide="ignore"):
        logs = np.where(np.isfinite(norms) & (norms > 0), np.log(norms), np.nan)
    middle = np.nanmean(logs, axis=0)
    return (logs - middle) / np.nanstd(logs, axis=0), np.exp(logs - middle)


def test_top_anomalies_are_those_of_the_formula(run: Path, norms: np.ndarray) -> None:
    z, ratio = usual(norms)
    with RunReader(run) as reader:
        by_z = queries.top_anomalies(reader, 12).to_pylist()
        by_ratio = queries.top_anomalies(reader, 12, by="ratio").to_pylist()
    for found, distance in ((by_z, np.abs(z)), (by_ratio, np.maximum(ratio, 1 / ratio))):
        assert [(row["step"], row["layer"]) for row in found[:2]] == [(777, 3), (2999, 0)]
        assert {row["z"] for row in found[:2]} == {math.inf}
        order = np.argsort(-np.nan_to_num(distance, nan=0.0), axis=None)[:10]
        places = [(int(place) // LAYERS, int(place) % LAYERS) for place in order]
        assert [(row["step"], row["layer"]) for row in found[2:]] == places
        for row in found[2:]:
            assert row["z"] == pytest.approx(z[row["step"], row["layer"]], rel=1e-9)
            assert row["ratio"] == pytest.approx(ratio[row["step"], row["layer"]], rel=1e-9)
            assert row["name"] == f"block.{row['layer']}"
    assert by_z[2]["step"] == 1234


def test_ranks_and_scopes_have_each_their_usual(empty_run: Path, rng: Any) -> None:
    values = {}
    for rank in (0, 1):
        writer = SegmentWriter(empty_run, f"w{rank}", rank=rank)
        for n, scope in enumerate(("local", "reduced", "another")):
            values[rank, scope] = np.exp(rng.normal(size=200) * 0.1 + 3 * n + rank)
            writer.write(
                "layers", np.arange(200), layer=[0] * 200, norm=values[rank, scope],
                scope=[scope] * 200,
            )  # fmt: skip
    with RunReader(empty_run) as reader:
        found = queries.top_anomalies(reader, 5).to_pylist()
    z = {place: usual(norms[:, None])[0][:, 0] for place, norms in values.items()}
    best = sorted(
        ((abs(own[s]), s, *place) for place, own in z.items() for s in range(200)), reverse=True
    )[:5]
    assert [(r["step"], r["rank"], r["scope"]) for r in found] == [row[1:] for row in best]


def test_norms_that_never_change_are_no_anomaly(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.write("layers", np.arange(50), layer=[0] * 50, norm=[0.1] * 50)
    with RunReader(empty_run) as reader:
        assert {row["z"] for row in queries.top_anomalies(reader).to_pylist()} == {0.0}


def test_a_rank_that_is_five_percent_slower_comes_first(empty_run: Path, rng: Any) -> None:
    ranks, steps = 8, 400
    times = 0.2 * np.exp(rng.normal(size=(ranks, steps)) * 0.02)
    times[5] *= 1.05
    times[:, 50::97] *= 30  # evaluations and checkpoints, on all ranks
    times[2, 7] = 500.0  # a pause of one rank is no slow rank
    for rank in range(ranks):
        seconds = [None, *times[rank, 1:].tolist()]
        SegmentWriter(empty_run, f"w{rank}", rank=rank).write(
            "steps", np.arange(steps), step_seconds=seconds, loss=[0.0] * steps
        )
    with RunReader(empty_run) as reader:
        found = queries.step_times(reader).to_pylist()
        window = queries.step_times(reader, 100, 199).to_pylist()
        assert queries.step_times(reader, steps).num_rows == 0
        assert queries.alerts(reader).num_rows == 0
    medians = np.median(times[:, 1:], axis=1)
    middle = np.median(medians)
    scale = 1.4826 * np.median(abs(medians - middle))
    assert [row["rank"] for row in found] == np.argsort(-medians).tolist()
    for row in found:
        own = medians[row["rank"]]
        assert row["steps"] == steps - 1
        assert row["seconds"] == pytest.approx(own, rel=1e-12)
        assert row["ratio"] == pytest.approx(own / middle, rel=1e-12)
        assert row["z"] == pytest.approx((own - middle) / scale, rel=1e-9)
    slow, *others = found
    assert slow["rank"] == 5
    assert slow["ratio"] == pytest.approx(1.05, abs=0.01)
    assert max(abs(row["ratio"] - 1) for row in others) < 0.01
    assert window[0]["rank"] == 5
    assert window[0]["steps"] == 100


def test_ranks_that_wait_for_each_other_are_equally_slow(empty_run: Path) -> None:
    for rank in range(4):
        SegmentWriter(empty_run, f"w{rank}", rank=rank).write(
            "steps", np.arange(3), step_seconds=[0.21] * 3
        )
    with RunReader(empty_run) as reader:
        found = queries.step_times(reader).to_pylist()
    assert [(row["rank"], row["ratio"], row["z"]) for row in found] == [
        (rank, 1.0, None) for rank in range(4)
    ]


def test_alerts_and_checkpoints(empty_run: Path) -> None:
    writer = Writer(empty_run, 0, Health())
    for step, layer in ((3, 0), (9, None)):
        writer.append("alerts", attempt=1, step=step, layer=layer, detector="d", score=2.0)
        writer.append("checkpoints", attempt=1, step=step, path=f"step={step}", status="clean")
    writer.close()
    with RunReader(empty_run) as reader:
        assert queries.alerts(reader).select(["step", "name"]).to_pylist() == [
            {"step": 3, "name": "w"}, {"step": 9, "name": None},
        ]  # fmt: skip
        assert queries.alerts(reader, 4, 9)["step"].to_pylist() == [9]
        assert queries.checkpoints(reader, last=3)["path"].to_pylist() == ["step=3"]


def test_questions_that_cannot_be_right(run: Path) -> None:
    with RunReader(run) as reader:
        for ask in (
            lambda: queries.layer_over_steps(reader, "nowhere"),
            lambda: queries.layer_over_steps(reader, 99),
            lambda: queries.layer_over_steps(reader, 0, points=2),
            lambda: queries.layer_over_steps(reader, 0, measure="1; DROP"),  # type: ignore[arg-type]
            lambda: queries.layer_over_steps(reader, 0, measure="scope"),
            lambda: queries.all_layers(reader, 0, 1, measures=("x",)),  # type: ignore[arg-type]
            lambda: queries.top_anomalies(reader, by="x"),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError) as caught:
                ask()
            assert "\n" not in str(caught.value)


def test_pandas_if_it_is_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunReader(run) as reader:
        frame = reader.pandas("SELECT step FROM layers WHERE layer = $n", {"n": 0})
        assert frame["step"].sum() == STEPS * (STEPS - 1) // 2
        monkeypatch.setattr("sdc_guard.store.trace_reader.find_spec", lambda _: None)
        with pytest.raises(UsageError, match="pandas is not installed"):
            reader.pandas("SELECT 1")
