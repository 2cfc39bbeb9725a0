"""The report's figure: loss, gradient norm and what was digested, over the steps.

The same numbers give the same bytes: no time, no random names. In the SVG every colour is replaced
by a variable of the page's style sheet, by which it is legible on light and on dark: that is why
each role has a colour of its own here.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sdc_guard.colours import BLUE, GREEN, INK, ORANGE, RULE, SOFT, VERMILION

from ..checkpoint import Checkpoint
from .facts import Curve, Report

_CARD: Final = "#fefefe"
_LINE, _CLEAN, _SUSPECT, _CORRUPT = BLUE, GREEN, ORANGE, VERMILION
_STYLED: Final = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    _CARD: "var(--card)",
    _LINE: "var(--line)",
    _CLEAN: "var(--clean)",
    _SUSPECT: "var(--suspect)",
    _CORRUPT: "var(--corrupt)",
}
_SETTINGS: Final = {
    "svg.hashsalt": "sdc-guard",
    "svg.fonttype": "none",  # text stays text: small, selectable, in the page's font
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,
    "axes.unicode_minus": True,
}
_WIDTH: Final = 9.6  # inches
_HEIGHTS: Final = {"loss": 1.75, "gradient norm": 1.45, "state digested": 0.62}
_LANES: Final = 0.95
_MAX_MARKS: Final = 300
_DENSE: Final = 800  # points from which on a line is drawn thinner
_SPREAD: Final = 50  # a range of so many times its least value is drawn by its logarithm


@dataclass(frozen=True)
class Mark:
    """How a kind of mark looks: its name, colour, shape, and whether it is filled."""

    label: str
    colour: str
    shape: str
    filled: bool = True


CHECKPOINTS: Final = {
    "clean": Mark("clean checkpoint", _CLEAN, "o"),
    "suspect": Mark("suspect checkpoint", _SUSPECT, "^"),
    "corrupt": Mark("corrupt checkpoint", _CORRUPT, "X"),
    "untested": Mark("untested checkpoint", SOFT, "s", filled=False),
    "damaged": Mark("damaged file", _CORRUPT, "P"),
    "unreadable": Mark("file that cannot be read", INK, "x"),
}
ALERTS: Final = {
    "proven": Mark("proven alert", _CORRUPT, "D"),
    "suspected": Mark("alert of a statistic", _SUSPECT, "v"),
}


@dataclass(frozen=True)
class Figure:
    """A drawing for the page.

    Attributes:
        width, height: of its view box.
        body: what is inside of the SVG element; made of numbers alone, so that it needs no
            escaping.
        title, description: in words.
    """

    width: float
    height: float
    body: str
    title: str
    description: str


@dataclass(frozen=True)
class Missing:
    """A figure that is not there, and why."""

    title: str
    why: str


TITLE: Final = "What happened, over the steps"


def timeline(report: Report) -> Figure | Missing:
    """The figure, or why there is none."""
    if not (report.curves or report.checkpoints or report.alert_steps):
        return Missing(TITLE, "nothing with a step is known")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        return Missing(TITLE, f"matplotlib cannot be imported ({error})")
    panels = [one for one in report.curves if one.name in _HEIGHTS]
    heights = [*(_HEIGHTS[one.name] for one in panels), _LANES]
    with rc_context(_SETTINGS):
        total = sum(heights) + 0.42 * len(heights) + 0.75
        canvas = Canvas(figsize=(_WIDTH, total), facecolor="none")
        axes = canvas.subplots(
            len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axis, curve in zip(axes, panels, strict=False):
            _curve(axis, curve, report)
        _lanes(axes[-1], report)
        axes[-1].set_xlabel("step", color=SOFT)
        _limits(axes[-1], report)
        _legend(canvas, report)
        canvas.subplots_adjust(
            left=0.1, right=0.985, top=1 - 0.62 / total, bottom=0.48 / total, hspace=0.42
        )
        return _svg(canvas, report)


def _curve(axis: Any, curve: Curve, report: Report) -> None:
    steps = [step for step, _ in curve.points]
    values = [value for _, value in curve.points]
    percent = curve.name == "state digested"
    _frame(axis, curve.name + (", % of the most" if percent else ""))
    if percent:
        axis.fill_between(steps, values, 0, step="mid", color=_LINE, alpha=0.25, linewidth=0)
        axis.set_ylim(0, 112)
        axis.set_yticks([0, 50, 100])
    elif values and min(values) > 0 and max(values) > _SPREAD * min(values):
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(steps) == 1 or not percent:
        marker = "." if len(steps) == 1 else None
        width = 1.25 if len(steps) < _DENSE else 0.8
        axis.plot(steps, values, color=_LINE, linewidth=width, marker=marker, zorder=3)
    _band(axis, report)
    if curve.undrawn:
        places = [step for step, _, _ in curve.undrawn]
        axis.plot(
            places, [0.97] * len(places), transform=axis.get_xaxis_transform(), color=_CORRUPT,
            linestyle="none", marker="x", markersize=5, clip_on=False,
        )  # fmt: skip


def _frame(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=9.5, color=INK, pad=5)
    axis.set_facecolor("none")
    axis.tick_params(length=0, labelsize=8.5, labelcolor=SOFT)
    axis.grid(axis="y", color=RULE, linewidth=0.8)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)


def _band(axis: Any, report: Report) -> None:
    """The steps among which the first corrupt one is, and that one as a line."""
    found = report.headline.interval  # of the state: a file that rotted is a single mark
    if found is None:
        return
    low, high = found
    if low is not None and low < high:
        axis.axvspan(low, high, color=_CORRUPT, alpha=0.16, linewidth=0)
    axis.axvline(high, color=_CORRUPT, linewidth=1.1, linestyle=(0, (4, 2)))


def _lanes(axis: Any, report: Report) -> None:
    _frame(axis, "alerts and checkpoints")
    axis.grid(visible=False)
    axis.set_ylim(-0.6, 1.6)
    axis.set_yticks([0, 1], ["checkpoints", "alerts"])
    _band(axis, report)
    for kind, mark in ALERTS.items():
        places = [step for step, severity in report.alert_steps if _alert(severity) == kind]
        _marks(axis, places, 1, mark)
    thinned = thin(report.checkpoints, _MAX_MARKS, report.headline.damaged_files)
    for status, mark in CHECKPOINTS.items():
        _marks(axis, [one.step for one in thinned if _kind(one, report) == status], 0, mark)


def _kind(one: Checkpoint, report: Report) -> str:
    """How a checkpoint is marked: by its file where that is damaged or cannot be read."""
    if one.step in report.headline.damaged_files:
        return "damaged"
    return one.status if one.readable else "unreadable"


def _marks(axis: Any, places: Sequence[int], lane: int, mark: Mark) -> None:
    if places:
        axis.plot(
            places, [lane] * len(places), linestyle="none", marker=mark.shape, markersize=6.5,
            color=mark.colour, markerfacecolor=mark.colour if mark.filled else _CARD,
            markeredgecolor=mark.colour, markeredgewidth=1.2, clip_on=False, zorder=4,
        )  # fmt: skip


def _alert(severity: str) -> str:
    return "proven" if severity == "proven" else "suspected"


def thin(
    checkpoints: Sequence[Checkpoint], most: int, damaged: Sequence[int] = ()
) -> list[Checkpoint]:
    """At most `most` of them: of neighbours the worst, and of equals the first."""
    if len(checkpoints) <= most:
        return list(checkpoints)
    badness = {"corrupt": 0, "suspect": 1, "untested": 2, "clean": 3}
    size = math.ceil(len(checkpoints) / most)
    parts = (checkpoints[at : at + size] for at in range(0, len(checkpoints), size))
    return [
        min(part, key=lambda one: -1 if one.step in damaged else badness[one.status])
        for part in parts
    ]


def _limits(axis: Any, report: Report) -> None:
    """A margin on both sides; a single step in the middle."""
    steps = [step for curve in report.curves for step, _ in curve.points]
    steps += [one.step for one in report.checkpoints] + [step for step, _ in report.alert_steps]
    steps += [step for curve in report.curves for step, _, _ in curve.undrawn]
    low, high = min(steps), max(steps)
    margin = max((high - low) * 0.02, 0.5)
    axis.set_xlim(low - margin, high + margin)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def _legend(canvas: Any, report: Report) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    statuses = {_kind(one, report) for one in report.checkpoints}
    severities = {_alert(severity) for _, severity in report.alert_steps}
    shown = [mark for status, mark in CHECKPOINTS.items() if status in statuses]
    shown += [mark for kind, mark in ALERTS.items() if kind in severities]
    handles: list[Any] = [
        Line2D([], [], linestyle="none", marker=mark.shape, markersize=6.5, color=mark.colour,
               markerfacecolor=mark.colour if mark.filled else _CARD, label=mark.label)
        for mark in shown
    ]  # fmt: skip
    if any(curve.undrawn for curve in report.curves):
        handles.append(Line2D([], [], linestyle="none", marker="x", markersize=5, color=_CORRUPT,
                              label="NaN or infinite"))  # fmt: skip
    if (found := report.headline.interval) is not None:
        handles.append(Line2D([], [], color=_CORRUPT, linewidth=1.1, linestyle=(0, (4, 2)),
                              label=_first(report)))  # fmt: skip
        if found[0] is not None:
            handles.append(
                Patch(color=_CORRUPT, alpha=0.3, linewidth=0, label="fault may lie here")
            )
    if handles:
        canvas.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.092, 1.0), ncols=5, frameon=False,
            fontsize=8.5, labelcolor=SOFT, handletextpad=0.4, columnspacing=1.4, borderpad=0.2,
        )  # fmt: skip


def _svg(canvas: Any, report: Report) -> Figure:
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    opening = re.search(r"<svg\b[^>]*>", text)
    assert opening is not None  # matplotlib wrote it
    body = text[opening.end() : text.rindex("</svg>")]
    for colour, variable in _STYLED.items():
        body = body.replace(colour, variable)
    # its style sheet would hold for the page, and its font is not on every machine
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    width, height = canvas.get_size_inches()
    return Figure(72 * width, 72 * height, body.strip(), TITLE, description(report))


def description(report: Report) -> str:
    """The figure in words."""
    found = []
    for curve in report.curves:
        values = [value for _, value in curve.points]
        if values:
            found.append(
                f"{curve.name} from {values[0]:.6g} to {values[-1]:.6g}, "
                f"between {min(values):.6g} and {max(values):.6g}"
            )
        if curve.undrawn:
            count = sum(number for _, _, number in curve.undrawn)
            found.append(f"{count} values of the {curve.name} are NaN or infinite")
    counts = {
        status: sum(_kind(one, report) == status for one in report.checkpoints)
        for status in CHECKPOINTS
    }
    told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    found.append(f"checkpoints: {told or 'none'}")
    if (known := report.headline.interval) is not None:
        found.append(f"{_first(report)}: step {known[1]}")
    return "; ".join(found) + "."


def _first(report: Report) -> str:
    answer = report.headline
    proven = answer.state == "corrupt"
    if answer.is_of_files:
        proven = bool((answer.training or {}).get("proven"))
    return "first corrupt" if proven else "suspected since"
