"""The report of a session, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sdc_guard.store.reader import RunReader

from .checkpoint import Checkpoint


def markdown(reader: RunReader, found: list[Checkpoint], results: list[dict[str, Any]]) -> str:
    """A report of what was recorded, searched and found.

    Args:
        reader: of the run.
        found: its checkpoints.
        results: the sessions' results, oldest first.
    """
    steps, first, last = reader.rows("SELECT count(*), min(step), max(step) FROM steps")[0]
    alerts = reader.rows(
        "SELECT step, detector, coalesce(name, ''), severity, detail->>'text'"
        " FROM alerts LEFT JOIN layer_names USING (layer) ORDER BY step LIMIT 20"
    )
    parts = [
        f"# Run {reader.run_file.name}",
        f"{steps} steps recorded ({first} to {last}), {len(reader.run_file.layers)} layers, "
        f"{len(reader.run_file.attempts)} attempts.",
        *(_result(result) for result in results[-2:]),
        "## Alerts",
        _table(("step", "detector", "layer", "severity", "text"), alerts) if alerts else "None.",
        "## Checkpoints",
        _table(
            ("step", "status", "reasons"),
            ((item.step, item.status, "; ".join(item.reasons)) for item in found),
        ),
    ]
    if reader.damaged:
        parts += ["## Damaged files", _table(("file", "error"), reader.damaged.items())]
    return "\n\n".join(parts) + "\n"


def _result(result: dict[str, Any]) -> str:
    name = str(result["schema"]["name"]).rpartition(".")[2]
    return "\n".join([f"## Result of `sdc-bisect {name}`", "", *lines(result)])


def lines(result: dict[str, Any]) -> list[str]:
    """A result as lines of text that are Markdown, too."""
    text = [sentence(result), *(f"- {line}" for line in result["evidence"])]
    if result["tensors"]:
        keys = ("kind", "name", "index", "bits", "before", "after", "before_value", "after_value")
        rows = [[tensor.get(key) for key in keys] for tensor in result["tensors"]]
        heads = ("kind", "tensor", "element", "bits", "before", "after", "was", "became")
        text += ["", _table(heads, rows)]
    return text


def sentence(result: dict[str, Any]) -> str:
    """The answer in one sentence that claims no more than the result does."""
    clean, corrupt = result["last_clean"], result["first_corrupt"]
    skipped = ", ".join(map(str, result["skipped"])) or "none"
    if corrupt is None:
        return f"Nothing corrupt was found up to step {clean}; untestable: {skipped}."
    certainty = "proven" if result["proven"] else "not proven, judged by a statistic or a command"
    if str(result["schema"]["name"]).endswith("verify"):
        rank = "unknown" if result["rank"] is None else result["rank"]
        return (
            f"Step {corrupt} is the first that differs ({certainty}); class: {result['class']}; "
            f"verdict: {result['verdict']}; rank: {rank}."
        )
    between = f"({'start' if clean is None else clean}, {corrupt}]"
    if result["exact"]:
        return f"Checkpoint {corrupt} is the first corrupt one: bracket {between}, {certainty}."
    return f"The first corrupt one lies in {between}, {certainty}; untestable: {skipped}."


def _table(heads: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        cells = ["" if cell is None else str(cell).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
