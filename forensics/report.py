"""The report of a session, as Markdown."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from sdc_guard.shown import shown
from sdc_guard.store.trace_reader import TraceReader

from .checkpoint import Checkpoint
from .recurring import recurring
from .watched import Watch, percent
from .wording import sentence

__all__ = ["lines", "markdown", "sentence", "utc"]

# what the guard tells once of what it cannot see
_BLIND = ("capture", "not carried", "layers changed")


def markdown(reader: TraceReader, found: list[Checkpoint], results: list[dict[str, Any]]) -> str:
    """A report of what was recorded, searched and found.

    Args:
        reader: of the run.
        found: its checkpoints.
        results: the sessions' results, oldest first.
    """
    alerts = reader.rows(
        "SELECT step, detector, coalesce(name, ''), severity, detail->>'text'"
        " FROM alerts LEFT JOIN layer_names USING (layer) ORDER BY step LIMIT 20"
    )
    blind = reader.rows(
        "SELECT min(step), kind, detail FROM events WHERE list_contains($kinds, kind)"
        " GROUP BY kind, detail ORDER BY 1, 2 LIMIT 20",
        {"kinds": list(_BLIND)},
    )
    parts = [
        f"# Run {shown(reader.run_file.name)}",
        _recorded(reader),
        *(_result(result) for result in results[-2:]),
        "## Alerts",
        _table(("step", "detector", "layer", "severity", "text"), alerts) if alerts else "None.",
        *(f"{shown(str(one))}." for one in recurring(reader)),
        "## Checkpoints",
        _table(
            ("step", "status", "reasons"),
            ((item.step, item.status, "; ".join(item.reasons)) for item in found),
        ),
    ]
    if blind:
        parts += ["## Not seen by the guard", _table(("step", "event", "detail"), blind)]
    if reader.damaged:
        parts += ["## Damaged files", _table(("file", "error"), reader.damaged.items())]
    return "\n\n".join(parts) + "\n"


def _recorded(reader: TraceReader) -> str:
    steps, first, last, skipped = reader.rows(
        "SELECT count(DISTINCT step), min(step), max(step),"
        " count(DISTINCT step) FILTER (skipped) FROM steps"
    )[0]
    text = (
        f"{steps} steps recorded ({first} to {last}), {len(reader.run_file.layers)} layers, "
        f"{len(reader.run_file.attempts)} attempts."
    )
    if skipped:
        text += f" {skipped} of them skipped: no update was applied."
    if last is not None and (share := Watch(reader).watched(last).share) < 1:
        text += f" {percent(share)} of the state's transitions from step to step were compared."
    return text


def _result(result: dict[str, Any]) -> str:
    name = str(result["schema"]["name"]).rpartition(".")[2]
    finished = result.get("finished")
    when = "" if finished is None else f" of {utc(finished)}"
    return "\n".join([f"## Result of `sdc-bisect {name}`{when}", "", *lines(result)])


def utc(moment: float) -> str:
    """A moment (seconds since the epoch) in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def lines(result: dict[str, Any]) -> list[str]:
    """A result as lines of text that are Markdown, too."""
    text = [sentence(result), *(f"- {shown(str(line))}" for line in result["evidence"])]
    if result["tensors"]:
        keys = ("kind", "name", "index", "bits", "before", "after", "before_value", "after_value")
        rows = [[tensor.get(key) for key in keys] for tensor in result["tensors"]]
        heads = ("kind", "tensor", "element", "bits", "before", "after", "was", "became")
        text += ["", *_table(heads, rows).split("\n")]
        if more := result.get("more_tensors"):
            text += ["", f"and {more} more tensors of the same step"]
    return text


def _table(heads: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        cells = ["" if cell is None else _cell(str(cell)) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return shown(text).replace("|", "\\|")
