"""Incidents of the trace that are open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ...errors import RunFormatError
from .stored import OpenIncident

# the newest row of an incident counts
_OPEN: Final = """
    SELECT opened, evidence, attempt FROM (
        SELECT * FROM incidents QUALIFY row_number() OVER (
            PARTITION BY attempt, rank, incident ORDER BY step DESC, closed IS NOT NULL DESC
        ) = 1
    ) WHERE closed IS NULL
"""


def open_incidents(run: Path) -> tuple[OpenIncident, ...]:
    """Those of the attempts that count.

    Raises:
        RunFormatError: not all of the trace's incidents can be read, so that one may be open.
        SdcGuardError: the trace cannot be read.
    """
    from ...store.reader import RunReader  # DuckDB

    if not (run / "trace").is_dir():
        raise _unread("there is no trace", run)
    with RunReader(run) as reader:
        rows = reader.rows(_OPEN)
        losses = reader.losses()
    if losses:
        raise _unread(losses[0].text, run)
    return tuple(_incident(*row) for row in rows)


def _incident(opened: int, evidence: str | None, attempt: int) -> OpenIncident:
    """What is not certain is taken for proven: then it stays open."""
    try:
        content = json.loads(evidence or "")
        last, proven = int(content["last_step"]), content["proven"] is not False
    except (ValueError, KeyError, TypeError):
        last, proven = opened, True
    return OpenIncident(opened, last, proven, attempt)


def _unread(what: str, run: Path) -> RunFormatError:
    return RunFormatError(
        f"whether an incident is open is not known: {what}", where=str(run / "trace")
    )
