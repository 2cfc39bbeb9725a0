"""What the page about what to do asks of a run's tables."""

from __future__ import annotations

from sdc_guard.store.trace_reader import TraceReader

from .advice import Audited
from .details import detail_of

_LOST = """
    SELECT sum(seconds) FROM (
        SELECT max(step_seconds) AS seconds FROM steps WHERE step > $after GROUP BY step
    )
"""
_AUDITED = """
    SELECT step, rank, severity, detail FROM alerts WHERE detector = 'step_audit'
    ORDER BY step, rank LIMIT 1000
"""


def seconds_after(reader: TraceReader, step: int) -> float | None:
    """What the steps after this one took, the slowest rank's time of each; None if not recorded."""
    found = reader.rows(_LOST, {"after": step})[0][0]
    return None if found is None else float(found)


def audited(reader: TraceReader) -> tuple[Audited, ...]:
    """What audits found, by step; rows that say nothing are left out."""
    return tuple(
        Audited(
            step,
            str(detail["verdict"]),
            None if detail.get("device") is None else str(detail["device"]),
            rank,
            severity == "proven",
            str(detail.get("text", "")),
        )
        for step, rank, severity, text in reader.rows(_AUDITED)
        if "verdict" in (detail := detail_of(text))
    )
