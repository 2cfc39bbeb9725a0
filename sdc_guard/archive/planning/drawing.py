"""Where to keep checkpoints, as a figure: ages on a logarithmic axis.

The same plan gives the same bytes: no time, no random names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from ...colours import BLUE, INK, ORANGE, RULE, SOFT
from ...errors import UsageError
from .chart import axis_of, per_factor
from .plan import Plan
from .units import money_text, time_text

_LATENCY: Final = ORANGE
_KEPT: Final = BLUE
_SETTINGS: Final = {
    "svg.hashsalt": "sdc-guard",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
}
SUFFIXES: Final = (".svg", ".png", ".pdf")
_COLUMNS: Final = 240
_PLACES: Final = 3000


def check_suffix(path: Path) -> None:
    """Whether a figure can be written to that path.

    Raises:
        UsageError: it cannot.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            "no format for a figure", where=str(path), next_step=f"end it in {', '.join(SUFFIXES)}"
        )


def draw(plan: Plan, path: Path) -> None:
    """Draw the figure in the format that the path's suffix names.

    Raises:
        UsageError: a suffix that is none of SUFFIXES.
        OSError: the path cannot be written.
    """
    check_suffix(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(9.0, 3.9), facecolor="white")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        figure.subplots_adjust(left=0.1, right=0.975, top=0.79, bottom=0.14, hspace=0.08)
        _density(upper, plan)
        _ages(lower, plan)
        _words(figure, plan)
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, metadata=dated.get(path.suffix.lower()))


def _density(axes: Any, plan: Plan) -> None:
    latency = plan.inputs.latency
    axis = axis_of(latency, plan.keeping.ages)
    edges = np.geomspace(axis.least, axis.most, _COLUMNS + 1)
    heights = per_factor(latency, edges)
    axes.stairs(heights, edges, fill=True, color=_LATENCY, alpha=0.45, linewidth=0)
    axes.set_ylim(0, 1.12)
    axes.set_yticks([])
    axes.set_ylabel("detection\nlatency", rotation=0, ha="right", va="center", color=INK)
    _bare(axes)


def _ages(axes: Any, plan: Plan) -> None:
    axis = axis_of(plan.inputs.latency, plan.keeping.ages)
    old = plan.keeping.ages[plan.keeping.ages > 0]
    # a million lines would be a figure of hundreds of megabytes: one for each place is enough
    span = max(np.log(axis.most / axis.least), 1e-9)
    _, first = np.unique(np.round(np.log(old / axis.least) / span * _PLACES), return_index=True)
    old = old[first]
    axes.vlines(old, 0, 1, color=_KEPT, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xlim(axis.least * 0.95, axis.most * 1.05)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([])
    axes.set_ylabel("kept", rotation=0, ha="right", va="center", color=INK)
    ticks = axis.ticks()
    axes.set_xticks([age for age, _ in ticks], [name for _, name in ticks], color=SOFT)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("age of the checkpoint, right after a save", color=SOFT)
    _bare(axes)


def _bare(axes: Any) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)
    axes.tick_params(length=3, color=RULE)


def _words(figure: Any, plan: Plan) -> None:
    keeping, latency = plan.keeping, plan.inputs.latency
    title = f"Keep {keeping.count:,} checkpoints, of saves every {time_text(plan.interval.period)}"
    figure.text(0.1, 0.93, title, fontsize=13, color=INK, fontweight="bold")
    storage = money_text(plan.costs.storage).replace("$", r"\$")  # else it begins a formula
    cost = f"Storage {storage} a month. After a corruption the training goes"
    cost += f" back {time_text(keeping.excess)} farther than needed, on the mean."
    figure.text(0.1, 0.87, cost, fontsize=8.5, color=SOFT)
    words = f"Latency: {latency.words} ({plan.inputs.latency_origin})".replace("$", r"\$")
    figure.text(0.1, 0.82, words[:130], fontsize=8.5, color=SOFT)
