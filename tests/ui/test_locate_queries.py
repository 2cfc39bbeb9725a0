"""Scores and bins of the page Locate against numpy, and bins that lose no spike."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hand_made import Trace, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from app.locating import queries_cell, queries_compare, queries_locate, scans
from app.locating.heatmap import MAX_CELLS
from app.locating.layer_rows import rows_of
from app.locating.scans import Window, heatmap_cells, scan
from app.locating.statistics_sql import STATISTICS
from app.locating.step_bins import Stretches
from sdc_guard.store.reader import RunReader

NORM = STATISTICS["norm"]
STEPS, RANKS, LAYERS = 300, 3, 2


def values(seed: int) -> np.ndarray:
    """Norms (ranks, layers, steps) with a trend, spikes, zeros, NaN and infinity."""
    rng = np.random.default_rng(seed)
    found = np.exp(rng.normal(0, 0.3, (RANKS, LAYERS, STEPS)) - np.arange(STEPS) / 100)
    found[1, 1, 77] *= 50
    found[2, 0, 130] /= 40
    found[0, 0, [5, 6]] = 0.0
    found[0, 1, 9], found[2, 1, 200] = np.nan, np.inf
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunReader, np.ndarray]]:
    run = make_run(tmp_path_factory.mktemp("locate") / "run", world_size=RANKS)
    norms = values(20240917)
    for rank in range(RANKS):
        with Trace(run, rank=rank) as trace:
            for layer in range(LAYERS):
                trace.rows(
                    "layers",
                    np.arange(STEPS),
                    layer=layer,
                    norm=norms[rank, layer],
                    max_abs=norms[rank, layer] / 2,
                    mean_abs=norms[rank, layer] / 4,
                    nonfinite=(~np.isfinite(norms[rank, layer])).astype(np.int64),
                    zeros=np.arange(STEPS) % 5,
                    scope="local",
                    copies=1,
                )
    with RunReader(run) as reader:
        yield reader, norms


def expected_z(norms: np.ndarray, by: Stretches, floor: float = 0.05) -> np.ndarray:
    """z of one layer and rank, by the formula; −∞ for zeros, NaN for what is not finite."""
    stretch = np.array([by.of(step) for step in range(len(norms))])
    z = np.full(len(norms), np.nan)
    for number in np.unique(stretch):
        here = stretch == number
        usable = here & np.isfinite(norms) & (norms > 0)
        x = np.log(norms[usable])
        spread = 1.4826 * np.median(np.abs(x - np.median(x))) + floor
        z[usable] = (x - np.median(x)) / spread
        z[here & (norms == 0)] = -np.inf
    return z


def all_z(norms: np.ndarray, by: Stretches) -> np.ndarray:
    return np.stack([[expected_z(layer, by) for layer in rank] for rank in norms])


def layer_table() -> pa.Table:
    return pa.table({"layer": pa.array([0, 1], pa.int64()), "row": pa.array([0, 1], pa.int64())})


@pytest.mark.parametrize("width", [1, 4, 64])
@pytest.mark.parametrize("rank", [None, 0, 2])
def test_z_is_that_of_the_formula_and_a_bin_has_the_greatest(
    known: tuple[RunReader, np.ndarray], width: int, rank: int | None
) -> None:
    reader, norms = known
    by = Stretches(128, 0, 1, 1)
    found = queries_locate.bins(reader, NORM, 0, STEPS - 1, width)
    usual = queries_locate.usual(reader, NORM, by)
    cells = queries_locate.cells(found, usual, layer_table(), NORM, by, width, rank)
    own = norms if rank is None else norms[[rank]]
    z = all_z(own, by)
    assert len(cells) == LAYERS * len(np.unique(np.arange(STEPS) // width))
    for cell in cells.itertuples(index=False):
        steps = np.arange(STEPS) // width == cell.bin
        here = z[:, cell.row, steps]
        judged = here[~np.isnan(here)]
        assert (
            cell.bad
            == (~np.isfinite((norms if rank is None else norms[[rank]])[:, cell.row, steps])).sum()
        )
        assert cell.unjudged == (judged.size == 0)
        if judged.size:
            assert abs(cell.z) == pytest.approx(np.abs(judged).max(), rel=1e-9)
            at = cell.rank if rank is None else 0
            assert cell.z == pytest.approx(z[at, cell.row, int(cell.step)], rel=1e-9)


def test_a_value_that_is_not_finite_is_counted_and_has_its_step(
    known: tuple[RunReader, np.ndarray],
) -> None:
    reader, _ = known
    by = Stretches(128, 0, 1, 1)
    found = queries_locate.bins(reader, NORM, 0, STEPS - 1, 1)
    usual = queries_locate.usual(reader, NORM, by)
    cells = queries_locate.cells(found, usual, layer_table(), NORM, by, 1)
    bad = cells[cells["bad"] > 0]
    assert [(c.row, c.bin, c.bad_step) for c in bad.itertuples()] == [(1, 9, 9), (1, 200, 200)]
    alone = queries_locate.cells(found, usual, layer_table(), NORM, by, 1, 0)
    lost = alone[(alone["row"] == 1) & (alone["bin"] == 9)].iloc[0]
    assert lost["unjudged"]
    assert lost["step"] == 9
    assert np.isnan(lost["z"])


def test_a_zero_is_minus_infinity_unless_most_are_zero(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    norm = np.ones(40)
    often, seldom = norm.copy(), norm.copy()
    often[::2], often[1::4] = 0.0, 0.0
    seldom[7] = 0.0
    with Trace(run) as trace:
        for layer, column in enumerate((often, seldom)):
            trace.rows("layers", np.arange(40), layer=layer, norm=column, nonfinite=0, zeros=0)
    with RunReader(run) as reader:
        whole = scan(reader, NORM)
        assert whole is not None
        rows = rows_of(["a", "b"])
        cells = heatmap_cells(reader, NORM, whole, Window(0, 39, 0, 1), rows, [0, 1])
    z = {(c.row, c.bin): c.z for c in cells.itertuples()}
    assert z[1, 7] == -np.inf
    assert not any(np.isinf(value) for (row, _), value in z.items() if row == 0)


def test_the_sample_of_a_long_stretch_is_spread_over_it(
    known: tuple[RunReader, np.ndarray],
) -> None:
    reader, norms = known
    by = Stretches(512, 0, 0, 4)
    taken = np.arange(STEPS) * 2654435761 % 2**32 < 2**32 // 4
    assert 60 <= taken.sum() <= 90
    assert np.diff(np.flatnonzero(taken)).max() <= 8
    usual = queries_locate.usual(reader, NORM, by).to_pandas().sort_values("place")
    x = [
        np.log(n[taken & np.isfinite(n) & (n > 0)])
        for layer in range(LAYERS)
        for n in norms[:, layer]
    ]
    np.testing.assert_allclose(usual["middle"], [np.median(one) for one in x])
    np.testing.assert_allclose(
        usual["spread"], [np.median(np.abs(one - np.median(one))) for one in x]
    )


def test_what_was_reduced_names_no_rank_while_a_ranks_own_value_is_as_far_off(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        with Trace(run, rank=rank) as trace:
            for scope in ("local", "reduced"):
                norm = 1 + 0.1 * (np.arange(40) % 3)
                if scope == "reduced" or rank == 1:
                    norm[20] = 900.0 if scope == "reduced" else 800.0
                trace.rows(
                    "layers", np.arange(40), layer=0, norm=norm, nonfinite=0, zeros=0, scope=scope
                )
    with RunReader(run) as reader:
        whole = scan(reader, NORM)
        assert whole is not None
        cells = heatmap_cells(reader, NORM, whole, Window(0, 39, 0, 0), rows_of(["a"]), [0])
    (cell,) = cells[cells["bin"] == 20].itertuples()
    assert (cell.rank, cell.scope) == (1, "local")


@settings(max_examples=12)
@given(data=st.data())
def test_no_spike_is_lost_by_binning_whatever_the_shape(data: st.DataObject) -> None:
    """One value far from all others stands in its cell, over any steps, layers and widths."""
    layers = data.draw(st.integers(1, 6), "layers")
    steps = data.draw(st.integers(9, 700), "steps")
    first = data.draw(st.integers(0, 10**12), "first")
    apart = data.draw(st.integers(1, 40), "apart")
    row, at = data.draw(st.integers(0, layers - 1)), data.draw(st.integers(0, steps - 1))
    up = data.draw(st.booleans(), "up")
    numbers = first + apart * np.arange(steps)
    x = np.random.default_rng(steps).uniform(1, 2, (layers, steps))
    x[row, at] *= 1e9 if up else 1e-9
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder) / "run")
        with Trace(run) as trace:
            for layer in range(layers):
                trace.rows("layers", numbers, layer=layer, norm=x[layer], nonfinite=0, zeros=0)
        with RunReader(run) as reader:
            whole = scan(reader, NORM)
            assert whole is not None
            names = [f"m.{layer}" for layer in range(layers)]
            most = data.draw(st.integers(1, layers), "rows")
            rows = rows_of(names, most=most)
            window = Window(whole.extent.first, whole.extent.last, 0, layers - 1)
            cells = heatmap_cells(reader, NORM, whole, window, rows, list(range(layers)))
    assert len(cells) <= MAX_CELLS
    spike = cells.iloc[int(cells["z"].abs().to_numpy().argmax())]
    assert (spike["layer"], spike["step"]) == (row, numbers[at])
    assert np.sign(spike["z"]) == (1 if up else -1)
    assert rows[int(spike["row"])].first <= row <= rows[int(spike["row"])].last
    assert spike["bin"] == numbers[at] // window.width


@pytest.mark.parametrize("name", list(STATISTICS))
def test_differences_are_those_of_the_formula(
    known: tuple[RunReader, np.ndarray], name: str
) -> None:
    reader, norms = known
    chosen = queries_compare.selection(77, 80, 0)
    assert (chosen.first, chosen.last, chosen.baseline) == (77, 80, (0, 76))
    frame = queries_compare.differences(reader, chosen)
    found = frame[frame["statistic"] == name].set_index(["rank", "layer"])["d"]
    column: Any = {"norm": norms, "max_abs": norms / 2, "mean_abs": norms / 4}.get(name)
    if column is None:
        counts = np.broadcast_to(np.arange(STEPS) % 5, norms.shape)
        counts = counts if name == "zeros" else (~np.isfinite(norms)).astype(int)
        x = np.log((counts + 4 + np.sqrt(4) / 2) / (np.maximum(4 - counts, 0) + 0.5))
        floor = 0.25
    else:
        with np.errstate(divide="ignore"):
            x, floor = np.where(np.isfinite(column) & (column > 0), np.log(column), np.nan), 0.05
    base, selected = x[..., :77], x[..., 77:81]
    middle = np.nanmedian(base, axis=-1)
    spread = 1.4826 * np.nanmedian(np.abs(base - middle[..., None]), axis=-1) + floor
    d = (np.nanmedian(selected, axis=-1) - middle) / spread
    for (rank, layer), value in found.items():
        assert value == pytest.approx(d[rank, layer], rel=1e-9)
    assert len(found) == RANKS * LAYERS


def test_the_greatest_difference_stands_for_each(known: tuple[RunReader, np.ndarray]) -> None:
    reader, _ = known
    frame = queries_compare.differences(reader, queries_compare.selection(77, 77, 0))
    first = queries_compare.ranked(frame, "rank").iloc[0]
    assert (first["rank"], first["layer"]) == (1, 1)
    broken = queries_compare.differences(reader, queries_compare.selection(200, 200, 0))
    first = queries_compare.ranked(broken, "layer").iloc[0]
    assert (first["rank"], first["layer"], first["d"]) == (2, 1, np.inf)
    assert len(queries_compare.ranked(frame, "layer", most=1)) == 1


def test_values_curves_and_the_peers_band(known: tuple[RunReader, np.ndarray]) -> None:
    reader, norms = known
    at = queries_cell.values_at(reader, NORM, 1, 77)
    assert list(at["rank"]) == [0, 1, 2]
    np.testing.assert_array_equal(at["norm"], norms[:, 1, 77])
    curves = queries_cell.curves(reader, NORM, 1, "local", 70, 80)
    np.testing.assert_array_equal(curves[curves["rank"] == 1]["value"], norms[1, 1, 70:81])
    band = queries_cell.peers_band(reader, NORM, 1, "local", 1, 70, 80)
    np.testing.assert_array_equal(band["high"], norms[[0, 2], 1, 70:81].max(axis=0))
    np.testing.assert_array_equal(band["low"], norms[[0, 2], 1, 70:81].min(axis=0))


def test_digests_tell_what_changed_and_who_differs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=3)
    for rank in range(3):
        with Trace(run, rank=rank) as trace:
            for step in (1, 2, 3):
                for phase in ("before", "after"):
                    odd = rank == 2 and (step, phase) in {(3, "before"), (3, "after")}
                    trace.row(
                        "digests", step, phase=phase, kind="param", layer=0, h=8 + odd, s1=1, s2=2
                    )
    with RunReader(run) as reader:
        assert queries_cell.carried(reader, 0, 2, 2) == {"param": True}
        assert queries_cell.carried(reader, 0, 2, 3) == {"param": False}
        assert queries_cell.carried(reader, 0, 0, 3) == {"param": True}
        assert queries_cell.carried(reader, 0, 0, 1) == {}
        votes = queries_cell.votes(reader, 0, 3)
    assert votes == {("param", 2): [[0, 1, 2]], ("param", 3): [[0, 1], [2]]}
    with Trace(run, rank=2) as trace:
        trace.row("events", 3, kind="refresh", detail="")
    with RunReader(run) as reader:
        assert queries_cell.carried(reader, 0, 2, 3) == {}


def test_a_scan_is_kept_for_its_version_and_those_of_two_statistics(
    known: tuple[RunReader, np.ndarray],
) -> None:
    reader, _ = known
    kept = scans.Scans()

    def of(version: int, name: str = "norm") -> Any:
        answer = kept.of(reader, version, STATISTICS[name], rows=1)
        assert answer is not None
        return answer.value

    first = of(1)
    assert of(1) is first
    second = of(2)
    assert second is not first
    of(2, "max_abs")
    assert of(2) is second
    of(2, "mean_abs")  # two are kept, and max_abs was asked for longest ago
    assert of(2) is second


def test_a_scan_of_many_rows_is_not_waited_for(known: tuple[RunReader, np.ndarray]) -> None:
    reader, _ = known
    kept = scans.Scans()
    assert kept.of(reader, 1, NORM, rows=40_000_000) is None
    end = time.monotonic() + 60
    while not kept.news(reader, 1, NORM, None):
        assert time.monotonic() < end
        time.sleep(0.01)
    found = kept.of(reader, 1, NORM, rows=40_000_000)
    assert found is not None
    assert found.value is not None
    assert found.value.extent.rows == known_rows(reader)


def known_rows(reader: RunReader) -> int:
    return int(reader.rows("SELECT count(*) FROM layers")[0][0])


def test_a_large_window_is_made_of_the_scan_that_is_there(
    known: tuple[RunReader, np.ndarray],
) -> None:
    whole = scan(known[0], NORM)
    assert whole is not None
    assert whole.width == 2  # of 300 steps at most 160 are shown one by one
    assert scans.window_in(whole, (0, 99), (0, 1), 2).width == 1
    many = replace(whole, extent=replace(whole.extent, rows=10**8))
    assert scans.window_in(many, (0, 99), (0, 1), 2).width == 2
    assert scans.window_in(many, (0, 9), (0, 1), 2).width == 1


def test_alerts_are_marked_in_their_cells_the_proven_ones_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    with Trace(run, rank=1) as trace:
        trace.alert(9, "suspect")
        trace.alert(10)
        trace.alert(21, "suspect")
    with RunReader(run) as reader:
        marks = queries_cell.alert_cells(reader, 0, 30, 8).to_pylist()
        assert queries_cell.alert_cells(reader, 0, 30, 8, rank=0).num_rows == 0
    assert [(m["layer"], m["bin"], m["severity"], m["count"], m["step"]) for m in marks] == [
        (1, 1, "proven", 2, 9),
        (1, 2, "suspect", 1, 21),
    ]
