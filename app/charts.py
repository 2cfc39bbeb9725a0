"""Charts of the timeline: from data to Altair, without any reading or page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import altair as alt
import pandas as pd

from .chart_dress import dressed
from .palette import LIGHT, Palette
from .records import Checkpoint
from .series import MAX_MARKS, Series
from .wording import count, number_text, span_text

# Sorts of marks: shape and colour (a field of the palette) differ together, so that neither is
# needed to tell them apart.
MARKS: Final[dict[str, tuple[str, str]]] = {
    "proven alert": ("diamond", "corrupt"),
    "statistical alert": ("triangle-down", "suspect"),
    "clean checkpoint": ("circle", "clean"),
    "suspect checkpoint": ("triangle-up", "suspect"),
    "corrupt checkpoint": ("cross", "corrupt"),
    "untested checkpoint": ("square", "untested"),
    "deleted checkpoint": ("stroke", "soft"),
    "event": ("triangle-right", "event"),
}
_LANE_HEIGHT: Final = 200
_LEFT: Final = 80  # pixels for the labels of every vertical axis, so that the steps line up


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis; `log` for a logarithmic one."""

    title: str
    lines: Mapping[str, Series]
    log: bool = False
    height: int = 160


@dataclass(frozen=True)
class Overlay:
    """What runs through all panels.

    Attributes:
        first, last: the steps shown.
        band: (last clean, first bad], the former None for the start of the run.
        step: the selected step.
        alerts: columns step, severity, count, detectors, layers, layer.
        events: columns step, kind.
    """

    first: int
    last: int
    band: tuple[int | None, int] | None = None
    step: int | None = None
    alerts: pd.DataFrame = field(default_factory=pd.DataFrame)
    events: pd.DataFrame = field(default_factory=pd.DataFrame)


def timeline(
    panels: Sequence[Panel],
    overlay: Overlay,
    checkpoints: Sequence[Checkpoint],
    palette: Palette = LIGHT,
) -> Iterator[alt.LayerChart]:
    """The panels from top to bottom over equal axes of steps, and last a lane of marks.

    They are charts of their own, since a concatenated chart does not fit itself to its page. Each
    is made when it is asked for: while a browser loads what draws the first, the next are made.
    """
    for panel in panels:
        layers = alt.layer(*_panel(panel, overlay, palette))
        text = panel_text(panel, overlay)
        yield dressed(layers, palette, text, left=_LEFT, height=panel.height)
    rows = mark_rows(overlay, checkpoints)
    lane = alt.layer(*_lane(rows, overlay, palette))
    yield dressed(lane, palette, lane_text(rows, overlay), left=_LEFT, height=_LANE_HEIGHT)


def panel_text(panel: Panel, overlay: Overlay) -> str:
    """A panel in words, for who does not see it."""
    said = []
    for name, line in panel.lines.items():
        drawn = line.points.dropna(subset="value")  # NaN breaks the line
        if drawn.empty:
            continue
        values, steps = drawn["value"], drawn["step"]
        top = int(values.to_numpy().argmax())
        said.append(
            f"{name} from {number_text(float(values.iloc[0]))} to "
            f"{number_text(float(values.iloc[-1]))}, at most "
            f"{number_text(float(values.iloc[top]))} at step {int(steps.iloc[top]):,}"
        )
    return f"{panel.title} over {_steps_text(overlay)}: {'; '.join(said) or 'no value'}."


def lane_text(rows: pd.DataFrame, overlay: Overlay) -> str:
    """The lane of marks in words: how many of each sort, and where the first is."""
    said = []
    for sort, found in rows.groupby("sort", sort=False):
        first = int(found["step"].min())
        said.append(f"{count(len(found), str(sort))}, the first at step {first:,}")
    what = "Alerts, checkpoints and events"
    return f"{what} over {_steps_text(overlay)}: {'; '.join(said) or 'none'}."


def _steps_text(overlay: Overlay) -> str:
    return f"steps {span_text(overlay.first, overlay.last)}"


def mark_rows(overlay: Overlay, checkpoints: Sequence[Checkpoint]) -> pd.DataFrame:
    """Rows of the lane of marks: step, lane, sort (a key of MARKS), text for the tooltip."""
    rows = [
        (
            int(step),
            "alerts",
            "proven alert" if severity == "proven" else "statistical alert",
            _alert_text(int(count), detectors, int(layers), layer),
        )
        for step, severity, count, detectors, layers, layer in _tuples(overlay.alerts)
    ]
    rows += [
        (c.step, "checkpoints", _sort(c), _standing(c)) for c in _thinned(checkpoints, overlay)
    ]
    rows += [(int(step), "events", "event", kind) for step, kind in _tuples(overlay.events)]
    return pd.DataFrame(rows, columns=["step", "lane", "sort", "text"])


def _sort(checkpoint: Checkpoint) -> str:
    return f"{'deleted' if checkpoint.deleted else checkpoint.status} checkpoint"


def _standing(checkpoint: Checkpoint) -> str:
    """A deleted one's status is told, too: what it was judged stays evidence."""
    if checkpoint.deleted:
        return f"deleted; it was {checkpoint.status}"
    return checkpoint.reason or checkpoint.status


def _tuples(frame: pd.DataFrame) -> list[tuple]:
    return list(frame.itertuples(index=False, name=None))


def _alert_text(count: int, detectors: str, layers: int, layer: str) -> str:
    where = layer if layers == 1 else f"{layers} layers" if layers else "whole step"
    return f"{detectors} in {where}" + (f", {count:,} alerts" if count > 1 else "")


def _thinned(checkpoints: Sequence[Checkpoint], overlay: Overlay) -> list[Checkpoint]:
    width = (overlay.last - overlay.first) // MAX_MARKS + 1
    kept: dict[tuple[int, str, str], Checkpoint] = {}
    for checkpoint in checkpoints:
        if overlay.first <= checkpoint.step <= overlay.last:
            bin_of = (checkpoint.step - overlay.first) // width
            place = (bin_of, checkpoint.status, _sort(checkpoint))
            kept.setdefault(place, checkpoint)
    return list(kept.values())


def _x(overlay: Overlay, *, labels: bool = False) -> alt.X:
    margin = max((overlay.last - overlay.first) * 0.01, 0.5)
    domain = [overlay.first - margin, overlay.last + margin]
    axis = alt.Axis(title="step" if labels else None, labels=labels, format=",d", tickMinStep=1)
    return alt.X("step:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)


def _panel(panel: Panel, overlay: Overlay, palette: Palette) -> list[alt.Chart]:
    scale = (
        alt.Scale(type="log", nice=False, padding=6)
        if panel.log
        else alt.Scale(zero=False, padding=6)
    )
    lines = {name: line for name, line in panel.lines.items() if not line.empty}
    axis = alt.Axis(values=log_ticks(lines)) if panel.log else alt.Axis()
    y = alt.Y("value:Q", title=panel.title, scale=scale, axis=axis)
    names = list(lines)
    colour_scale = alt.Scale(domain=names, range=[palette.line, palette.second][: len(names)])
    legend = None
    if len(names) > 1:
        legend = alt.Legend(
            orient="top", title=None, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2
        )
    # blue and purple look alike to some: the second curve is dashed, too
    dashes = alt.Scale(domain=names, range=[[1, 0], [5, 3]][: len(names)])
    layers = _behind(overlay, palette)
    for name, line in lines.items():
        colour = alt.Color("curve:N", scale=colour_scale, legend=legend)
        few = len(line.points) <= 100
        # of a line the browser makes a text for every value, and shows that of the first alone
        tooltip = (
            [alt.Tooltip("step:Q", format=",d"), alt.Tooltip("value:Q", format=".6g")]
            if few
            else alt.TooltipValue(None)
        )
        layers.append(
            alt.Chart(line.points.assign(curve=pd.Categorical([name] * len(line.points))))
            .mark_line(
                clip=True, strokeWidth=1.5, point=alt.OverlayMarkDef(size=18) if few else False
            )
            .encode(
                x=_x(overlay),
                y=y,
                color=colour,
                strokeDash=alt.StrokeDash("curve:N", scale=dashes, legend=legend),
                tooltip=tooltip,
            )
        )
        if not line.marks.empty:
            layers.append(_undrawn(line.marks, overlay, palette))
    return layers


def log_ticks(lines: Mapping[str, Series]) -> list[float]:
    """Places for the labels of a logarithmic axis: few, and round where the values allow it."""
    values = [x for line in lines.values() for x in line.points["value"] if x > 0]
    if not values:
        return []
    least, greatest = min(values), max(values)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(greatest))
    decades = math.log10(greatest / least)
    parts = (1, 2, 5) if decades <= 1.3 else (1, 3) if decades <= 2.5 else (1,)
    every = max((high - low) // 5, 1)
    places = [part * 10.0**power for power in range(low, high + 1, every) for part in parts]
    inside = [place for place in places if least <= place <= greatest]
    if len(inside) > 1:
        return inside
    middle = math.sqrt(least) * math.sqrt(greatest)
    return sorted({float(f"{place:.2g}") for place in (least, middle, greatest)})


def _undrawn(marks: pd.DataFrame, overlay: Overlay, palette: Palette) -> alt.Chart:
    tooltip = [
        alt.Tooltip("step:Q", format=",d"),
        alt.Tooltip("what:N"),
        alt.Tooltip("count:Q", format=",d"),
    ]
    return (
        alt.Chart(marks)
        .mark_point(shape="cross", angle=45, size=60, filled=True, color=palette.corrupt, clip=True)
        .encode(x=_x(overlay), y=alt.YValue(7), tooltip=tooltip)
    )


def _behind(overlay: Overlay, palette: Palette, *, labels: bool = False) -> list[alt.Chart]:
    """Band, alerts and the selected step, as they run behind a panel's curves."""
    layers = []
    x = _x(overlay, labels=labels)
    if overlay.band is not None:
        clean, bad = overlay.band
        start = overlay.first if clean is None else clean
        layers.append(
            alt.Chart(pd.DataFrame({"step": [start], "end": [bad]}))
            .mark_rect(color=palette.suspect, opacity=0.18, clip=True)
            .encode(x=x, x2=alt.X2("end:Q"))
        )
    for severity, dash in (("proven", [1, 0]), ("suspect", [4, 3])):
        if overlay.alerts.empty:
            continue
        proven = overlay.alerts["severity"] == "proven"
        rows = overlay.alerts[proven if severity == "proven" else ~proven][["step"]]
        if not rows.empty:
            sort = "proven alert" if severity == "proven" else "statistical alert"
            rule = alt.Chart(rows).mark_rule(
                color=getattr(palette, MARKS[sort][1]), strokeDash=dash, strokeWidth=1.2, clip=True
            )
            layers.append(rule.encode(x=x))
    if overlay.step is not None:
        chosen = alt.Chart(pd.DataFrame({"step": [overlay.step]}))
        layers.append(
            chosen.mark_rule(color=palette.chosen, strokeWidth=4, opacity=0.45, clip=True).encode(
                x=x
            )
        )
    return layers


def _lane(rows: pd.DataFrame, overlay: Overlay, palette: Palette) -> list[alt.Chart]:
    present = [sort for sort in MARKS if sort in set(rows["sort"])]
    shapes = [MARKS[sort][0] for sort in present]
    colours = [getattr(palette, MARKS[sort][1]) for sort in present]
    legend = alt.Legend(orient="bottom", title=None, columns=4, labelLimit=200)
    points = (
        alt.Chart(rows)
        .mark_point(filled=True, size=110, opacity=1, strokeWidth=2, clip=True)
        .encode(
            x=_x(overlay, labels=True),
            y=alt.Y(
                "lane:N", title=" ", scale=alt.Scale(domain=["alerts", "checkpoints", "events"])
            ),
            shape=alt.Shape("sort:N", scale=alt.Scale(domain=present, range=shapes), legend=legend),
            color=alt.Color(
                "sort:N", scale=alt.Scale(domain=present, range=colours), legend=legend
            ),
            tooltip=[
                alt.Tooltip("step:Q", format=",d"),
                alt.Tooltip("sort:N"),
                alt.Tooltip("text:N"),
            ],
        )
    )
    return [*_behind(overlay, palette, labels=True), points]
