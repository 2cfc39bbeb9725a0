"""The scoreboard's figure: recall by site, with intervals.

The same numbers give the same bytes: no time, no random names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..colours import BLUE, GREEN, INK, ORANGE, PURPLE, RULE, SOFT
from .outcomes import AFTERWARDS, LIVE

Numbers = dict[str, Any]

_BAND: Final = "#f5f7f9"
_SETTINGS: Final = {
    "svg.hashsalt": "sdc-guard",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
}
_SITES: Final = {
    "weight": "weight",
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "step": "step counter",
    "buffer": "buffer",
    "gradient": "gradient",
    "reduced_gradient": "reduced gradient",
    "activation": "activation",
    "output_gradient": "output's gradient",
    "collective": "all-reduce",
    "batch": "batch",
    "file": "checkpoint file",
}
_ROW: Final = 0.62  # inches


@dataclass(frozen=True)
class Series:
    """One series: its column in the numbers, its name, colour, shape, and whether it is filled."""

    column: str
    label: str
    colour: str
    marker: str
    filled: bool = True


def draw(numbers: Numbers, path: Path) -> bool:
    """Draw the figure as SVG, or as what the path's suffix says.

    Args:
        numbers: of `scoreboard`.
        path: is written to.

    Returns:
        False if there is no fault that counts: nothing was drawn.
    """
    rows = [row for row in numbers["sites_of_all_models"] if row["counted"]]
    mixes = list(dict.fromkeys(row["mix"] for row in rows))
    if not mixes:
        return False
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sites = [site for site in _SITES if any(row["site"] == site for row in rows)]
    series = _series(numbers["best_baseline"])
    with rc_context(_SETTINGS):
        height = _ROW * len(sites) + 2.0
        figure = Figure(figsize=(1.9 + 3.9 * len(mixes), height), facecolor="white")
        axes = figure.subplots(1, len(mixes), sharey=True, squeeze=False)[0]
        for axis, mix in zip(axes, mixes, strict=True):
            by_site = {row["site"]: row for row in rows if row["mix"] == mix}
            _panel(axis, f"{mix.capitalize()} faults", sites, by_site, series)
        axes[0].set_yticks(range(len(sites)), [_SITES[site] for site in sites], color=INK)
        left = 1.55 / figure.get_figwidth()
        figure.subplots_adjust(
            left=left, right=0.985, top=1 - 1.32 / height, bottom=0.55 / height, wspace=0.07
        )
        _words(figure, axes, series, height, left, rows)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _series(best: str | None) -> list[Series]:
    found = [] if best is None else [
        Series("best baseline", f"best baseline: {best}", ORANGE, "s")
    ]  # fmt: skip
    return [
        *found,
        Series("sensor", "sensor", BLUE, "o"),
        Series(LIVE, "all live evidence", GREEN, "D"),
        Series(AFTERWARDS, "and a replay afterwards", PURPLE, "^", filled=False),
    ]


def _panel(
    axis: Any, title: str, sites: list[str], rows: dict[str, Numbers], series: list[Series]
) -> None:
    axis.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)
    axis.set_xlim(-3, 103)
    axis.set_ylim(len(sites) - 0.5, -0.5)
    axis.set_xticks(range(0, 101, 25), [f"{x} %" for x in range(0, 101, 25)], color=SOFT)
    axis.tick_params(length=0, labelsize=9)
    axis.tick_params(axis="y", labelsize=9.5, pad=8)
    axis.grid(axis="x", color=RULE, linewidth=0.8)
    axis.set_axisbelow(True)
    for spine in axis.spines.values():
        spine.set_visible(False)
    for place in range(0, len(sites), 2):
        axis.axhspan(place - 0.5, place + 0.5, color=_BAND, linewidth=0, zorder=0)
    for place, site in enumerate(sites):
        if site not in rows:
            axis.text(50, place, "not injected", ha="center", va="center", color=SOFT, fontsize=8)
            continue
        for number, one in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * 0.2
            _point(axis, one, rows[site]["recall"][one.column]["recall"], place + offset)


def _point(axis: Any, one: Series, rate: Numbers, y: float) -> None:
    share, low, high = (100 * rate[key] for key in ("share", "low", "high"))
    axis.plot([low, high], [y, y], color=one.colour, linewidth=1.6, solid_capstyle="round",
              zorder=2)  # fmt: skip
    axis.plot(
        [share], [y], linestyle="none", marker=one.marker, markersize=6, color=one.colour,
        markerfacecolor=one.colour if one.filled else "white", markeredgewidth=1.4, zorder=3,
        clip_on=False,
    )  # fmt: skip


def _words(
    figure: Any,
    axes: Iterable[Any],
    series: list[Series],
    height: float,
    left: float,
    rows: list[Numbers],
) -> None:
    from matplotlib.lines import Line2D

    figure.text(left, 1 - 0.3 / height, "Share of faults found, by where they struck",
                fontsize=13, color=INK, fontweight="bold", va="center")  # fmt: skip
    handles = [
        Line2D([], [], color=one.colour, marker=one.marker, linewidth=1.6, markersize=6,
               markerfacecolor=one.colour if one.filled else "white", markeredgewidth=1.4,
               label=one.label)
        for one in series
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=(left + 0.001, 1 - 0.68 / height),
        ncols=len(series), frameon=False, fontsize=9, labelcolor=INK, handlelength=1.8,
        columnspacing=1.6, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    counted = sum(row["counted"] for row in rows)
    figure.text(
        left, 0.16 / height,
        f"{counted:,} faults that changed what was trained or saved; bars: 95 % intervals (Wilson)",
        fontsize=8.5, color=SOFT, va="center",
    )  # fmt: skip
