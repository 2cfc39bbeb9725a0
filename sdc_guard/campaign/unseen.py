"""What nothing found, said in plain sentences."""

from __future__ import annotations

from typing import Any

from .outcomes import AFTERWARDS, LIVE

Numbers = dict[str, Any]


def unseen(numbers: Numbers) -> list[str]:
    """The section of the report: a line for each site with faults that live evidence missed."""
    lines = [line for row in numbers["sites_of_all_models"] if (line := _line(row))]
    rows = [row for row in numbers["sites_of_all_models"] if row["counted"]]
    whole = [f"{row['site']} ({row['mix']})" for row in rows if not _missed(row, LIVE)]
    parts = ["## What stays unseen"]
    if lines:
        parts.append("\n".join(lines))
    if whole:
        parts.append(f"Nothing was missed at: {', '.join(whole)}.")
    return parts if rows else []


def _missed(row: Numbers, column: str) -> int:
    recall = row["recall"][column]["recall"]
    return int(recall["of"] - recall["hits"])


def _line(row: Numbers) -> str:
    live, after = _missed(row, LIVE), _missed(row, AFTERWARDS)
    if not live:
        return ""
    where = f"- {row['site']}, {row['mix']}: {live} of {row['counted']} faults raised no alarm"
    if not after:
        return f"{where}; a replay afterwards proves {'it' if live == 1 else 'all of them'}."
    if after == live:
        return f"{where}, and a replay afterwards proves none of them."
    return f"{where}; a replay afterwards proves {live - after}, and {after} stay unseen."
