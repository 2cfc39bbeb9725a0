"""Curves: few points, and no spike lost."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hand_made import NAMES, Trace, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from app.series import MAX_MARKS, MAX_POINTS, Series, alert_marks, event_marks, series, span
from sdc_guard.store.reader import RunReader


def curve_of(run: Path, values: dict[int, float], *, max_points: int = MAX_POINTS) -> Series:
    """The loss curve of a run with these losses."""
    with Trace(make_run(run)) as trace:
        steps = np.array(list(values), dtype=np.int64)
        trace.rows("steps", steps, loss=np.array(list(values.values())))
    with RunReader(run) as reader:
        return series(reader, "loss", 0, 2**62, max_points=max_points)


@settings(max_examples=25)
@given(
    values=st.dictionaries(
        st.integers(1, 5_000), st.floats(-1e6, 1e6, width=32), min_size=1, max_size=120
    ),
    max_points=st.integers(2, 40),
)
def test_a_spike_survives_thinning(values: dict[int, float], max_points: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = curve_of(Path(folder) / "run", values, max_points=max_points)
    drawn = set(found.points.itertuples(index=False, name=None))
    assert len(drawn) == len(found.points) <= max_points
    assert drawn <= set(values.items())
    assert list(found.points["step"]) == sorted(found.points["step"])
    first, last = min(values), max(values)
    # the bins, worked out a second time
    whole = last - first < max_points
    width = 1 if whole else (last - first) // (max_points // 2) + 1
    assert found.width == width
    for start in range(first, last + 1, width):
        binned = [value for step, value in values.items() if start <= step < start + width]
        kept = [value for step, value in drawn if start <= step < start + width]
        assert (min(kept), max(kept)) == (min(binned), max(binned)) if binned else not kept


def test_a_long_run_is_drawn_with_few_points_and_its_one_spike(tmp_path: Path) -> None:
    values = dict.fromkeys(range(1, 20_001), 1.0) | {12_345: 99.0, 777: -99.0}
    found = curve_of(tmp_path / "run", values)
    assert len(found.points) <= MAX_POINTS
    points = set(found.points.itertuples(index=False, name=None))
    assert {(12_345, 99.0), (777, -99.0)} <= points


def test_a_short_run_is_drawn_whole(tmp_path: Path) -> None:
    values = {step: float(step % 7) for step in range(1, MAX_POINTS + 1)}
    found = curve_of(tmp_path / "run", values)
    assert MAX_POINTS >= 1_000  # two for each pixel of a narrow chart
    assert dict(found.points.itertuples(index=False, name=None)) == values
    assert found.width == 1


def test_what_cannot_be_drawn_is_counted_and_breaks_the_line(tmp_path: Path) -> None:
    values = {1: 1.0, 2: math.nan, 3: math.inf, 4: -math.inf, 5: 2.0}
    found = curve_of(tmp_path / "run", values)
    assert found.undrawn == {"NaN": 1, "infinite": 2}
    assert found.points["step"].to_list() == [1, 2, 3, 4, 5]
    assert found.points["value"].isna().to_list() == [False, True, True, True, False]
    marked = set(found.marks[["step", "what"]].itertuples(index=False, name=None))
    assert marked == {(2, "NaN"), (3, "infinite"), (4, "infinite")}


def test_many_values_that_cannot_be_drawn_are_few_marks(tmp_path: Path) -> None:
    found = curve_of(tmp_path / "run", dict.fromkeys(range(1, 6_001), math.nan))
    assert found.undrawn == {"NaN": 6_000}
    assert len(found.marks) <= MAX_MARKS
    assert found.points["value"].isna().all()


def test_zero_cannot_be_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        for step, norm in enumerate((0.5, 0.0, 2.0), 1):
            trace.row("steps", step, grad_norm=norm)
    with RunReader(run) as reader:
        assert series(reader, "grad_norm", 1, 3, log=True).undrawn == {"zero or less": 1}
        assert series(reader, "grad_norm", 1, 3).undrawn == {}


def test_nothing_recorded_is_an_empty_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with RunReader(run) as reader:
        assert span(reader) is None
        found = series(reader, "loss", 0, 10)
    assert (found.empty, found.undrawn, found.width) == (True, {}, 1)


def test_several_ranks_span_their_range(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=3)
    for rank, loss in enumerate((1.0, 5.0, 3.0)):
        with Trace(run, rank=rank) as trace:
            trace.row("steps", 7, loss=loss)
    with RunReader(run) as reader:
        found = series(reader, "loss", 0, 10)
    assert found.points.values.tolist() == [[7.0, 1.0], [7.0, 5.0]]


def test_window_and_layer(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.steps(1, 9)
    with RunReader(run) as reader:
        assert span(reader) == (1, 9)
        found = series(reader, "layer", 3, 5, layer=NAMES[1], log=True)
    assert found.points.values.tolist() == [[3, 0.2], [4, 0.2], [5, 0.2]]


def test_norms_are_of_the_whole_gradient(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank, shard in enumerate((3.0, 4.0)):
        with Trace(run, rank=rank) as trace:
            trace.row("steps", 7, grad_norm=shard)
            trace.row("layers", 7, layer=0, norm=shard, scope="sharded", copies=1)
            trace.row("layers", 7, layer=1, norm=9.0 + rank, scope="local")
            trace.row("layers", 7, layer=1, norm=12.0, scope="reduced", copies=1)
    with RunReader(run) as reader:
        sharded = series(reader, "layer", 0, 10, layer=NAMES[0])
        reduced = series(reader, "layer", 0, 10, layer=NAMES[1])
        whole = series(reader, "grad_norm", 0, 10)
    assert sharded.points.values.tolist() == [[7, 5.0]]
    assert reduced.points.values.tolist() == [[7, 12.0]]
    assert whole.points.values.tolist() == [[7, 13.0]]


@pytest.mark.parametrize("steps", [10, 4_000])
def test_marks_of_alerts_are_few_and_lose_no_alert(tmp_path: Path, steps: int) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        numbers = np.arange(1, steps + 1)
        trace.rows("alerts", numbers, layer=0, detector="gradient_norm", severity="suspect")
        trace.alert(5)
        trace.row("events", 1, kind="start", detail="{}")
    with RunReader(run) as reader:
        found = alert_marks(reader, 1, steps)
        assert event_marks(reader, 1, steps).values.tolist() == [[1, "start"]]
    assert len(found) <= 2 * MAX_MARKS
    assert found["count"].sum() == steps + 1
    proven = found[found["severity"] == "proven"]
    assert proven[["step", "detectors", "layer"]].values.tolist() == [
        [5, "carried_digest", NAMES[1]]
    ]
