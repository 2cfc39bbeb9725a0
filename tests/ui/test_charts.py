"""Charts as the specifications that the browser gets."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
import pytest
from colour_contrast import contrast

from app.charts import MARKS, Overlay, Panel, mark_rows, timeline
from app.palette import DARK, LIGHT, Palette
from app.records import Checkpoint
from app.series import Series


def curve(values: list[float], marks: list[tuple[int, str, int]] | None = None) -> Series:
    points = pd.DataFrame({"step": range(1, len(values) + 1), "value": values})
    return Series(points, pd.DataFrame(marks or [], columns=["step", "what", "count"]), 1)


def alerts(*rows: tuple[int, str]) -> pd.DataFrame:
    return pd.DataFrame(
        [(step, severity, 1, "d", 1, "w") for step, severity in rows],
        columns=["step", "severity", "count", "detectors", "layers", "layer"],
    )


def checkpoint(step: int, status: str) -> Checkpoint:
    return Checkpoint(step, f"archive/{step}", "torch", 1, status, "")


def layers_of(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]


def rows_of(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return rows


OVERLAY = Overlay(
    1, 60, band=(20, 40), step=27, alerts=alerts((27, "proven"), (30, "suspect"), (50, "suspect"))
)
PANELS = (
    Panel("loss", {"training loss": curve([3.0, 2.0]), "shadow loss": curve([2.5])}),
    Panel("gradient norm (log)", {"gradient norm": curve([0.1, 100.0])}, log=True),
)


def specs(*checkpoints: Checkpoint, overlay: Overlay = OVERLAY) -> list[dict[str, Any]]:
    return [chart.to_dict() for chart in timeline(PANELS, overlay, checkpoints)]


def test_every_chart_is_drawn_on_a_canvas_over_the_same_steps() -> None:
    charts = specs(checkpoint(20, "clean"))
    assert len(charts) == 3
    domains = set()
    for spec in charts:
        assert spec["usermeta"] == {"embedOptions": {"renderer": "canvas"}}
        domains |= {tuple(layer["encoding"]["x"]["scale"]["domain"]) for layer in spec["layer"]}
    assert len(domains) == 1
    first, last = domains.pop()
    assert first < 1 < 60 < last


def test_alerts_are_rules_told_apart_by_colour_and_dash() -> None:
    for spec in specs():
        rules = [rule for rule in layers_of(spec, "rule") if "strokeDash" in rule["mark"]]
        steps = [[row["step"] for row in rows_of(spec, rule)] for rule in rules]
        assert steps == [[27], [30, 50]]
        colours = {rule["mark"]["color"] for rule in rules}
        dashes = {tuple(rule["mark"]["strokeDash"]) for rule in rules}
        assert len(colours) == len(dashes) == 2


def test_the_band_and_the_selected_step_run_through_every_chart() -> None:
    for spec in specs():
        (band,) = layers_of(spec, "rect")
        assert rows_of(spec, band) == [{"step": 20, "end": 40}]
        selected = [x for x in layers_of(spec, "rule") if "strokeDash" not in x["mark"]]
        assert [rows_of(spec, rule) for rule in selected] == [[{"step": 27}]]


def test_without_band_and_step_there_are_none() -> None:
    for spec in specs(overlay=Overlay(1, 60)):
        assert not layers_of(spec, "rect")
        assert not layers_of(spec, "rule")


def test_a_band_without_a_clean_checkpoint_begins_with_the_run() -> None:
    spec = specs(overlay=Overlay(1, 60, band=(None, 40)))[0]
    assert rows_of(spec, layers_of(spec, "rect")[0]) == [{"step": 1, "end": 40}]


def test_only_the_norm_has_a_logarithmic_axis() -> None:
    loss, norm, _ = specs()
    assert {x["encoding"]["y"]["scale"].get("type") for x in layers_of(norm, "line")} == {"log"}
    assert {x["encoding"]["y"]["scale"].get("type") for x in layers_of(loss, "line")} == {None}


def test_statuses_differ_in_shape_and_in_colour() -> None:
    statuses = [f"{status} checkpoint" for status in ("clean", "suspect", "corrupt", "untested")]
    assert len({MARKS[status][0] for status in statuses}) == 4
    for palette in (LIGHT, DARK):
        assert len({getattr(palette, MARKS[status][1]) for status in statuses}) == 4
    spec = specs(checkpoint(20, "clean"), checkpoint(40, "suspect"))[-1]
    (points,) = layers_of(spec, "point")
    shape, colour = points["encoding"]["shape"]["scale"], points["encoding"]["color"]["scale"]
    present = ["proven alert", "statistical alert", "clean checkpoint", "suspect checkpoint"]
    assert shape["domain"] == colour["domain"] == present
    expected = [(MARKS[x][0], getattr(LIGHT, MARKS[x][1])) for x in present]
    assert list(zip(shape["range"], colour["range"], strict=True)) == expected


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_all_colours_are_those_of_the_page(palette: Palette) -> None:
    charts = timeline(
        PANELS, OVERLAY, [checkpoint(20, "clean"), checkpoint(40, "corrupt")], palette
    )
    known = {str(colour).lower() for colour in vars(palette).values()}
    for chart in charts:
        used = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}", chart.to_json())}
        assert used <= known
        axis = chart.to_dict()["config"]["axis"]
        assert contrast(axis["labelColor"], palette.page) >= 4.5
        assert contrast(axis["gridColor"], palette.page) >= 1.1


def test_a_deleted_checkpoint_is_drawn_as_such_and_says_what_it_was() -> None:
    gone = Checkpoint(20, "archive/20", "torch", 1, "clean", "", deleted=True)
    rows = mark_rows(Overlay(1, 60), [gone, checkpoint(40, "clean")])
    assert rows[["sort", "text"]].values.tolist() == [
        ["deleted checkpoint", "deleted; it was clean"],
        ["clean checkpoint", "clean"],
    ]


def test_the_lane_of_marks() -> None:
    overlay = Overlay(1, 60, alerts=alerts((27, "proven")), events=pd.DataFrame([(1, "start")]))
    rows = mark_rows(overlay, [checkpoint(40, "suspect"), checkpoint(99, "clean")])
    assert rows.values.tolist() == [
        [27, "alerts", "proven alert", "d in w"],
        [40, "checkpoints", "suspect checkpoint", "suspect"],
        [1, "events", "event", "start"],
    ]


def test_many_checkpoints_are_thinned_and_none_of_another_status_is_lost() -> None:
    kept = [checkpoint(step, "clean") for step in range(1, 10_001)]
    kept.append(checkpoint(5_000, "corrupt"))
    rows = mark_rows(Overlay(1, 10_000), kept)
    assert len(rows) <= 501
    assert rows[rows["sort"] == "corrupt checkpoint"]["step"].to_list() == [5_000]


def test_values_that_cannot_be_drawn_are_null_and_marked_at_the_edge() -> None:
    bad = curve([1.0, math.nan, 2.0], [(2, "NaN", 1)])
    (spec, _) = (x.to_dict() for x in timeline([Panel("loss", {"l": bad})], Overlay(1, 3), []))
    (line,), (marks,) = layers_of(spec, "line"), layers_of(spec, "point")
    assert [row["value"] for row in rows_of(spec, line)] == [1.0, None, 2.0]
    assert rows_of(spec, marks) == [{"step": 2, "what": "NaN", "count": 1}]
    assert marks["encoding"]["y"] == {"value": 7}


def test_a_run_of_one_step_and_a_run_of_nothing_have_charts() -> None:
    for overlay in (Overlay(5, 5), Overlay(0, 0)):
        for chart in timeline([], overlay, []):
            first, last = chart.to_dict()["layer"][0]["encoding"]["x"]["scale"]["domain"]
            assert first < last


def test_a_curve_without_a_point_is_not_drawn() -> None:
    panel = Panel("loss", {"training loss": curve([3.0]), "shadow loss": curve([])})
    spec = next(timeline([panel], Overlay(1, 60), [])).to_dict()
    (line,) = layers_of(spec, "line")
    assert line["encoding"]["color"]["scale"]["domain"] == ["training loss"]
    assert line["encoding"]["color"]["legend"] is None
