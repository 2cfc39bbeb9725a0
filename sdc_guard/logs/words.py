"""The findings in a log, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from ..detect.series_incidents import SeriesIncident
from ..shown import shown
from .judged import Judged

_SIGNALS: Final = {"grad_norm": "the gradient norm", "loss": "the loss"}
_STATES: Final = {
    "loss_scale_collapse": "the loss scale is collapsing: down to {peak:.3g}, below 1, where steps "
    "are left out and training stands still",
    "loss_not_finite": "the loss is not finite ({peak})",
    "grad_norm_not_finite": "the gradient norm is not finite ({peak})",
    "grad_norm_zero": "the gradient is exactly zero for longer than ever before",
}
WHAT_NOW: Final = (
    "A statistic suspects and does not convict: data, learning rate and precision do this, too. "
    "Replay the first of these steps from the last checkpoint before it, and compare."
)


def incident_line(incident: SeriesIncident) -> str:
    """One incident in a line."""
    steps = f"steps {incident.first_step} to {incident.last_step}"
    if incident.first_step == incident.last_step:
        steps = f"step {incident.first_step}"
    parts = [f"{steps}: {_what(incident)}"]
    others = [_short(kind) for kind in incident.kinds[1:]]
    if others:
        parts.append(f"also {', '.join(others)}")
    if incident.rows > 1:
        parts.append(f"{incident.rows} rows alarm")
    if incident.adopted is not None:
        parts.append(f"it lasts: counts as normal from step {incident.adopted} on")
    elif incident.at_end:
        parts.append("still open where the log ends")
    return "; ".join(parts)


def _what(incident: SeriesIncident) -> str:
    if incident.kind in _STATES:
        return _STATES[incident.kind].format(peak=incident.peak)
    name, _, side = incident.kind.rpartition("_")
    verb = "rises" if side == "high" else "falls"
    usual = "" if math.isnan(incident.usual) else f" from about {incident.usual:.3g}"
    return (
        f"{_SIGNALS[name]} {verb}{usual} to {incident.peak:.4g} "
        f"(z {incident.score:.1f}, limit {incident.limit:.1f})"
    )


def _short(kind: str) -> str:
    name, _, side = kind.rpartition("_")
    return f"{_SIGNALS[name]} {side}" if name in _SIGNALS else kind.replace("_", " ")


def told(judged: Iterable[Judged], most: int = 20) -> Iterator[str]:
    """Everything about some logs, in lines; runs without anything to tell are counted."""
    yield from map(shown, _told(list(judged), most))


def _told(everything: list[Judged], most: int) -> Iterator[str]:
    alone = len(everything) <= most
    quiet = [one for one in everything if not (one.report.incidents or one.report.events)]
    for one in everything:
        if alone or one.report.incidents or one.report.events:
            yield from _one(one)
    if not alone and quiet:
        yield f"{len(quiet)} runs without an incident"
        for note in dict.fromkeys(note for one in quiet for note in one.notes):
            yield f"  note: {note}"
    if any(one.report.incidents for one in everything):
        yield WHAT_NOW


def _one(one: Judged) -> Iterator[str]:
    run = f", run {one.run}" if one.run else ""
    writer = f", writer {one.writer}" if one.writer else ""
    used = ", ".join(name for role in ("loss", "grad_norm") if (name := one.columns[role]))
    yield (
        f"{one.file}{run}{writer}: {one.format}, {one.rows:,} rows, steps {one.first_step} to "
        f"{one.last_step}, columns {used}"
    )
    for note in one.notes:
        yield f"  note: {note}"
    for event in one.report.events:
        yield f"  {event.kind} at step {event.step}: {event.text}"
    for incident in one.report.incidents:
        yield f"  INCIDENT {incident_line(incident)}"
    if not one.report.incidents:
        yield "  no incident"
