"""Rows, bins, stretches, addresses and charts of the page Locate, without any run."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import drawing
from app.locating import (
    heat_cells,
    heatmap,
    layer_rows,
    locate_state,
    peers_chart,
    robust,
    step_bins,
)
from app.locating.cell_digests import vote_text
from app.locating.scans import Window
from app.palette import DARK, LIGHT

STEPS = st.integers(0, 2**62)
NAME = st.text(max_size=12) | st.from_regex(r"[a-c]{1,2}(\.[a-d0-9]{1,2}){0,4}", fullmatch=True)


@given(first=STEPS, span=st.integers(0, 2**61))
def test_bins_are_few_and_no_coarser_than_they_must_be(first: int, span: int) -> None:
    last = first + span
    width = step_bins.bin_width(first, last)
    assert last // width - first // width + 1 <= step_bins.MAX_COLUMNS
    assert width & (width - 1) == 0
    if width > 1:
        assert last // (width // 2) - first // (width // 2) + 1 > step_bins.MAX_COLUMNS


@given(first=STEPS, span=st.integers(1, 2**40), share=st.floats(1e-3, 1))
def test_every_bin_lies_in_one_stretch(first: int, span: int, share: float) -> None:
    last = first + span - 1
    by = step_bins.stretches(first, last, max(1, int(span * share)))
    width = step_bins.bin_width(first, last)
    assert by.length % width == 0
    assert by.last - by.first <= 8
    assert by.first <= by.of(first) <= by.of(last) <= by.last
    # each is judged by as many values as there are, or by 128
    assert by.length / by.share * min(1.0, share) >= 100 or by.share == 1


@given(step=STEPS, before=st.integers(0, 10**6), after=st.integers(0, 10**6))
def test_a_window_around_a_step_shows_single_steps(step: int, before: int, after: int) -> None:
    known = max(0, step - before), step + after
    first, last = step_bins.around(step, *known)
    assert known[0] <= first <= step <= last <= known[1]
    assert step_bins.bin_width(first, last) == 1


@given(names=st.lists(NAME, max_size=60), most=st.integers(1, 30))
def test_rows_have_each_layer_once_and_labels_of_their_own(names: list[str], most: int) -> None:
    rows = layer_rows.rows_of(names, most=most)
    places = [place for row in rows for place in range(row.first, row.last + 1)]
    assert places == list(range(len(names)))
    assert len({row.label for row in rows}) == len(rows)
    assert len(rows) <= most
    assert all(len(row.label) <= 60 and row.label.isprintable() for row in rows)


def test_rows_are_modules_where_there_are_too_many_layers() -> None:
    parts = ("attn.q", "attn.k", "mlp.up", "mlp.down")
    names = [f"model.layers.{n}.{part}.weight" for n in range(80) for part in parts]
    rows = layer_rows.rows_of(["embed.weight", *names])
    assert len(rows) == 81
    assert (rows[0].label, rows[1].label) == ("embed.weight", "model.layers.0 +3")
    assert [row.count for row in rows] == [1] + [4] * 80
    closer = layer_rows.rows_of(["embed.weight", *names], rows[5].first, rows[5].last)
    assert [row.label for row in closer] == [f"model.layers.4.{part}.weight" for part in parts]


@pytest.mark.parametrize("layers", [1, 99, 100, 101, 5_000])
@pytest.mark.parametrize("span", [1, 160, 161, 8_000, 10**9])
def test_at_most_16000_cells_of_any_shape(layers: int, span: int) -> None:
    for name in ("{}", "a.{}.w", "**{}**", 'x.{}.`y`."z"'):
        rows = layer_rows.rows_of([name.format(n) for n in range(layers)])
        width = step_bins.bin_width(7, 7 + span - 1)
        columns = (7 + span - 1) // width - 7 // width + 1
        assert len(rows) * columns <= heatmap.MAX_CELLS


def test_never_more_than_a_hundred_rows(rng: np.random.Generator) -> None:
    for alphabet in (1, 2, 30, 10_000):
        for depth in (1, 2, 4):
            parts = rng.integers(alphabet, size=(rng.integers(101, 900), depth))
            names = [".".join(map(str, row)) for row in parts]
            assert len(layer_rows.rows_of(names)) <= layer_rows.MAX_ROWS


@given(text=st.text(max_size=20) | st.none(), low=st.integers(0, 99), size=st.integers(0, 99))
def test_an_address_never_shows_what_is_not_there(text: str | None, low: int, size: int) -> None:
    first, last = locate_state.span_of(text, low, low + size)
    assert low <= first <= last <= low + size


def test_spans_of_addresses() -> None:
    assert locate_state.span_of("20-40", 0, 99) == (20, 40)
    assert locate_state.span_of("90-400", 0, 99) == (90, 99)
    assert locate_state.span_of("400-500", 0, 99) == (0, 99)
    assert locate_state.span_of("40-20", 0, 99) == (0, 99)
    assert locate_state.span_of(locate_state.span_text((3, 5)), 0, 9) == (3, 5)


def test_a_click_on_a_coarse_cell_zooms_in_and_on_a_fine_one_selects() -> None:
    single, group = layer_rows.LayerRow(4, 4, "a"), layer_rows.LayerRow(8, 11, "b")
    fine, coarse = Window(0, 99, 0, 11), Window(0, 7999, 0, 11)
    asked = locate_state.clicked(single, 50, 4, fine, (0, 99))
    assert asked == locate_state.Clicked(50, 4, None, None)
    asked = locate_state.clicked(group, 5000, 9, coarse, (0, 7999))
    assert asked == locate_state.Clicked(5000, 9, (4920, 5079), (8, 11))


def test_z_across_ranks_is_that_of_the_formula() -> None:
    x = [0.0, 0.1, -0.1, 0.05, 4.0]
    spread = 1.4826 * 0.1 + 0.05
    found = robust.across(x, 0.05)
    # the median is 0.05, and the distances from it 0.05, 0.05, 0.15, 0, 3.95
    spread = 1.4826 * 0.05 + 0.05
    np.testing.assert_allclose(found, [(value - 0.05) / spread for value in x])
    assert robust.across([0.0, 9.0], 0.05) == [None, None]
    assert robust.across([None, float("inf"), 1.0, 1.0, 1.0], 0.05) == [None, None, 0.0, 0.0, 0.0]


def test_votes_in_words() -> None:
    assert vote_text([]) == "not recorded"
    assert vote_text([[0]]) == "one rank"
    assert vote_text([[0, 1, 2]]) == "✔ 3 ranks the same"
    assert vote_text([[0, 1], [2]]) == "✖ 2 ranks the same, not rank 2"
    assert vote_text([[0], [1]]) == "✖ 2 versions, no majority"


def cells(rows: int, columns: int, **changed: Any) -> pd.DataFrame:
    """A frame as `queries_locate.cells` gives it."""
    n = rows * columns
    frame = pd.DataFrame(
        {
            "row": np.repeat(np.arange(rows), columns),
            "bin": np.tile(np.arange(columns), rows),
            "bad": 0,
            "bad_step": np.nan,
            "unjudged": False,
            "z": np.linspace(-20, 20, n),
            "x": 0.0,
            "step": np.tile(np.arange(columns), rows),
            "layer": np.repeat(np.arange(rows), columns),
            "rank": 0,
            "scope": "local",
        }
    )
    return frame.assign(**changed)


def no_alerts() -> pd.DataFrame:
    return pd.DataFrame(columns=["row", "bin", "severity", "count", "detectors", "step"])


def chart_of(
    frame: pd.DataFrame, rows: int, columns: int, alerts: pd.DataFrame | None = None
) -> dict[str, Any]:
    names = [f"l{n}" for n in range(rows)]
    found = layer_rows.rows_of(names)
    described = heat_cells.described(frame, found, dict(enumerate(names)), 1)
    shown = heat_cells.drawn(
        described, no_alerts() if alerts is None else alerts, found, (0, columns - 1, 1)
    )
    with alt.data_transformers.disable_max_rows():
        spec: dict[str, Any] = heatmap.heatmap(shown, LIGHT, (0, 0)).to_dict()
    json.dumps(spec, allow_nan=False)
    return spec


def test_a_small_heatmap_has_labels_and_a_large_one_is_on_canvas() -> None:
    small = chart_of(cells(4, 100), 4, 100)
    assert small["usermeta"]["embedOptions"]["renderer"] == "svg"
    assert small["layer"][0]["encoding"]["description"]["field"] == "text"
    large = chart_of(cells(5, 100), 5, 100)
    assert large["usermeta"]["embedOptions"]["renderer"] == "canvas"


def test_a_heatmap_in_words_names_what_is_farthest_off() -> None:
    spec = chart_of(cells(4, 100), 4, 100)
    assert spec["description"] == (
        "Heatmap of how unusual layers are: 4 rows of layers over steps 0 to 99; "
        "farthest off: l0, rank 0, step 0: z -20."
    )
    # short names leave more room to the cells
    assert spec["config"]["axisY"]["minExtent"] == 80


def test_colours_are_clamped_and_centred_on_zero() -> None:
    spec = chart_of(cells(2, 21), 2, 21)
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == pytest.approx([-8, -16 / 3, -8 / 3, 0, 8 / 3, 16 / 3, 8])
    assert scale["range"][3] == LIGHT.diverging[3]
    assert scale["clamp"] is True
    (data,) = [d for d in spec["datasets"].values() if "colour" in d[0]]
    assert [min(r["colour"] for r in data), max(r["colour"] for r in data)] == [-8, 8]
    assert data[0]["text"] == "l0, step 0: z -20"
    assert data[0]["tip"] == "l0, rank 0, step 0: z -20"


def test_what_is_not_finite_or_not_judged_is_told_apart_by_its_mark() -> None:
    frame = cells(2, 3)
    frame.loc[1, ["z", "unjudged"]] = [np.nan, True]
    frame.loc[2, "bad"], frame.loc[4, "z"] = 3, -np.inf
    marks = [layer["mark"] for layer in chart_of(frame, 2, 3)["layer"]]
    assert [m["type"] for m in marks] == ["rect", "rect", "text", "rect"]
    assert marks[1]["color"] == LIGHT.untested
    assert marks[2]["text"] == "✕"
    alerts = pd.DataFrame(
        {
            "row": [0, 1],
            "bin": [1, 2],
            "severity": ["proven", "suspect"],
            "count": 1,
            "detectors": "d",
            "step": 1,
        }
    )
    shapes = {layer["mark"].get("shape") for layer in chart_of(frame, 2, 3, alerts)["layer"]}
    assert {"diamond", "triangle-down"} <= shapes


def test_the_texts_of_cells_are_those_of_each_cell_alone() -> None:
    rng = np.random.default_rng(7)
    frame = cells(3, 40, z=np.round(rng.normal(0, 30, 120), 4), rank=rng.integers(0, 3, 120))
    frame.loc[5, "z"], frame.loc[[6, 7], "unjudged"], frame.loc[8, "bad"] = -np.inf, True, 2
    names = ["a", "b", "c"]
    found = heat_cells.described(frame, layer_rows.rows_of(names), dict(enumerate(names)), 1)
    for at, row in enumerate(frame.itertuples(index=False)):
        alone = frame.iloc[at : at + 1]
        (tip,) = heat_cells.described(alone, layer_rows.rows_of(names), {}, 1)["tip"]
        assert found["tip"].iloc[at] == tip.replace(f"{row.layer},", f"{names[row.layer]},", 1)
    assert found["tip"].iloc[5].endswith("z −∞ (zero)")
    assert found["tip"].iloc[7].endswith("z none")
    assert found["tip"].iloc[8].endswith("; 2 values not finite")
    assert found["text"].iloc[8].endswith("; 2 values not finite")


def test_a_chart_is_written_without_a_check_as_it_is_with_one() -> None:
    names = ["a", "b"]
    rows = layer_rows.rows_of(names)
    described = heat_cells.described(cells(2, 30), rows, dict(enumerate(names)), 1)
    shown = heat_cells.drawn(described, no_alerts(), rows, (0, 29, 1))
    chart = heatmap.heatmap(shown, LIGHT, None)
    assert drawing._Unchecked(chart).to_dict() == chart.to_dict()


def test_nothing_but_nan_is_a_chart_all_the_same() -> None:
    frame = cells(2, 2, z=np.nan, x=np.nan, unjudged=True, bad=7)
    texts = [row["text"] for row in next(iter(chart_of(frame, 2, 2)["datasets"].values()))]
    assert all("7 values not finite" in text for text in texts if text)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_bars_are_cut_and_have_their_text_beside_them(palette: Any) -> None:
    chart = peers_chart.bars(["a", "a", "b"], [np.inf, -3.0, -np.inf], ["x", "y", "z"], palette)
    spec = chart.to_dict()
    json.dumps(spec, allow_nan=False)
    (data,) = spec["datasets"].values()
    assert [(r["size"], r["sort"]) for r in data] == [(50, "higher"), (3, "lower"), (50, "lower")]
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["bar", "text"]


def test_curves_leave_out_what_has_no_place_on_their_axis() -> None:
    own = pd.DataFrame({"step": [1, 2, 3, 4], "rank": 0, "value": [1.0, 0.0, np.nan, np.inf]})
    empty = pd.DataFrame()
    chart = peers_chart.peers(own, own.iloc[:0], empty, 2, (1, 4), "norm", LIGHT, log=True)
    spec = chart.to_dict()
    json.dumps(spec, allow_nan=False)
    drawn = [d for d in spec["datasets"].values() if d and "value" in d[0]]
    assert [[row["step"] for row in d] for d in drawn] == [[1]]
