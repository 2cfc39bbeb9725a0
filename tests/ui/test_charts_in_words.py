"""What charts have in common, and what they say to who does not see them."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd
import pytest
from colour_contrast import contrast

from app import address
from app.chart_dress import dressed
from app.charts import Overlay, Panel, lane_text, mark_rows, panel_text, timeline
from app.fleet import Run
from app.fleet_table import table
from app.locating import layer_rows, peers_chart
from app.palette import DARK, LIGHT, Palette
from app.records import Checkpoint
from app.series import Series
from app.summary import Summary
from app.wording import place_text


def curve(values: list[float]) -> Series:
    points = pd.DataFrame({"step": range(1, len(values) + 1), "value": values})
    return Series(points, pd.DataFrame(columns=["step", "what", "count"]), 1)


OVERLAY = Overlay(1, 20_000)
PANEL = Panel("loss", {"training loss": curve([3.0, 4.5, 2.0]), "shadow loss": curve([])})
KEPT = (
    Checkpoint(20, "a/20", "torch", 1, "clean", ""),
    Checkpoint(60, "a/60", "torch", 1, "clean", ""),
    Checkpoint(80, "a/80", "torch", 1, "suspect", ""),
)


def test_a_panel_and_the_lane_in_words() -> None:
    assert panel_text(PANEL, OVERLAY) == (
        "loss over steps 1 to 20,000: training loss from 3 to 2, at most 4.5 at step 2."
    )
    assert lane_text(mark_rows(OVERLAY, KEPT), OVERLAY) == (
        "Alerts, checkpoints and events over steps 1 to 20,000: 2 clean checkpoints, the first at "
        "step 20; 1 suspect checkpoint, the first at step 80."
    )
    charts = [chart.to_dict() for chart in timeline([PANEL], OVERLAY, KEPT)]
    assert [chart["description"].split(" over ")[0] for chart in charts] == [
        "loss",
        "Alerts, checkpoints and events",
    ]


def test_a_value_that_breaks_the_line_is_not_in_the_words() -> None:
    broken = Panel("loss", {"a": curve([math.nan, 3.0, math.nan, 2.0]), "b": curve([math.nan])})
    assert panel_text(broken, OVERLAY) == (
        "loss over steps 1 to 20,000: a from 3 to 2, at most 3 at step 2."
    )


def test_no_label_makes_one_chart_of_the_timeline_narrower_than_the_next() -> None:
    for chart in timeline([PANEL], OVERLAY, KEPT):
        axes = chart.to_dict()["config"]
        # five digits are broader than the margin of one percent: the last label stays inside
        assert axes["axisX"]["labelFlush"] >= 30
        assert axes["axisY"]["minExtent"] == axes["axisY"]["maxExtent"] == 80


def test_the_two_losses_differ_in_dash_as_well_as_in_colour() -> None:
    both = Panel("loss", {"training loss": curve([3.0, 2.0]), "shadow loss": curve([2.5, 2.1])})
    spec = next(timeline([both], OVERLAY, [])).to_dict()
    lines = [layer for layer in spec["layer"] if layer["mark"]["type"] == "line"]
    (dashes,) = {str(line["encoding"]["strokeDash"]["scale"]["range"]) for line in lines}
    assert dashes == "[[1, 0], [5, 3]]"
    assert len({str(line["encoding"]["color"]["scale"]["range"]) for line in lines}) == 1


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_what_stands_on_axes_and_in_legends_is_read(palette: Palette) -> None:
    chart = alt.layer(alt.Chart(pd.DataFrame({"x": [1]})).mark_point().encode(x="x:Q"))
    config: dict[str, Any] = dressed(chart, palette, "a point", left=80).to_dict()["config"]
    page = palette.card if palette is LIGHT else palette.page
    for colour in (
        config["axis"]["labelColor"],
        config["axis"]["titleColor"],
        config["legend"]["labelColor"],
        config["legend"]["titleColor"],
    ):
        assert contrast(colour, page) >= 4.5


@pytest.mark.parametrize("values", [[2.0, -1.0], [2.0], [-3.0]])
def test_bars_say_only_what_there_is(values: list[float]) -> None:
    names = [f"layer {number}" for number in range(len(values))]
    spec = peers_chart.bars(names, values, names, LIGHT).to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    there = [
        name for name, sign in (("higher", 1), ("lower", -1)) if max(sign * x for x in values) > 0
    ]
    assert scale["domain"] == there
    assert len(scale["range"]) == len(there)
    assert spec["description"].endswith(f"{'; '.join(names)}.")


def test_a_long_name_loses_whole_modules_and_not_a_part_of_one() -> None:
    names = [
        f"model.layers.13.mlp.experts.{expert}.{part}_proj.weight"
        for expert in range(2)
        for part in ("gate", "up", "down")
    ]
    labels = [row.label for row in layer_rows.rows_of(names)]
    assert labels[0] == "…13.mlp.experts.0.gate_proj.weight"
    assert all(len(label) <= 36 for label in labels)
    together = layer_rows.rows_of(names, most=2)
    assert [row.label for row in together] == [
        "model.layers.13.mlp.experts.0 +2",
        "model.layers.13.mlp.experts.1 +2",
    ]
    # a name without modules is cut where it must be
    assert layer_rows.rows_of(["x" * 50])[0].label == "…" + "x" * 35


def test_the_choice_of_a_layer_is_as_wide_as_its_longest_name_within_bounds() -> None:
    short, long = ["weight"], ["model.layers.13.mlp.experts.11.down_proj.weight"]
    assert address.room([]) == address.room(short) < address.room(long) <= address.room(["x" * 999])
    assert address.room(long) > 7.4 * len(long[0]) + 70  # a letter's width, and the buttons


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ({"kind": "param", "index": 77, "bits": [22]}, "param, element 77, bit 22"),
        ({"kind": "exp_avg", "index": 0, "bits": [3, 4]}, "exp_avg, element 0, bits 3, 4"),
        ({"kind": "param"}, "param"),
        ({"text": "the loss is odd"}, ""),
    ],
)
def test_the_place_of_an_alert(detail: dict[str, Any], told: str) -> None:
    assert place_text(detail) == told


def test_a_table_of_runs_says_the_state_once() -> None:
    runs = [Run(name, name, there=True) for name in "abc"]
    found = [
        Summary("clean", "Clean so far: no check found anything."),
        Summary("suspect", "Suspect: nothing is proven."),
        Summary("unknown", "run.json is damaged: line 3"),
    ]
    assert table(runs, found, 0.0)["what is known"] == [
        "No check found anything.",
        "Nothing is proven.",
        "run.json is damaged: line 3",
    ]
