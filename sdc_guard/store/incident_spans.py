"""When the incidents of a run were open, and the shadow losses of its steps."""

from __future__ import annotations

import json
from typing import Final

from .trace_reader import TraceReader

_SPANS: Final = """
    SELECT opened, closed, attempt, evidence FROM every.incidents
    QUALIFY row_number() OVER (
        PARTITION BY attempt, rank, incident ORDER BY step DESC, closed DESC NULLS LAST) = 1
    ORDER BY opened
"""
_LOSSES: Final = "SELECT attempt, step, loss FROM every.shadow WHERE rank = 0"


def incident_spans(reader: TraceReader) -> list[tuple[int, int | None, int, str]]:
    """Of each incident the steps at which it opened and closed, the attempt, and how it began.

    Of all attempts and ranks, as they are recorded last; `closed` is None while it is open.
    """
    return [
        (opened, closed, attempt, _first(evidence))
        for opened, closed, attempt, evidence in reader.rows(_SPANS)
        if opened is not None
    ]


def shadow_losses(reader: TraceReader) -> dict[tuple[int, int], float]:
    """Attempt and step to the loss of the pinned batch after it."""
    return {
        (attempt, step): loss for attempt, step, loss in reader.rows(_LOSSES) if loss is not None
    }


def _first(evidence: str | None) -> str:
    try:
        first = json.loads(evidence or "{}").get("first")
    except (ValueError, AttributeError):
        first = None
    return first if isinstance(first, str) else "of unknown kind"
