"""How a run stands: read from its tables, judged by the clock."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import SdcGuardError
from ..plain_json import plain
from ..store.reader import RunReader

State = Literal["waiting", "damaged", "recording", "silent", "ended"]

SILENT_SECONDS: Final = 60.0  # at least, and at least this many of the run's own steps:
SILENT_STEPS: Final = 10

_STEPS = """
    SELECT max(step), max(time), count(DISTINCT rank) FILTER (
        attempt = (SELECT max(attempt) FROM attempts)
    ) FROM steps
"""
# the loss of the lowest rank, and the newest steps' typical duration
_NEWEST = """
    SELECT (SELECT arg_min_null(loss, rank) FROM steps WHERE step = $step), median(step_seconds)
    FROM steps WHERE step > $step - 50
"""
# a rank records every step from its first to its last
_MISSING = """
    SELECT coalesce(sum(missing), 0)::BIGINT FROM (
        SELECT max(step) - min(step) + 1 - count(DISTINCT step) AS missing
        FROM steps GROUP BY rank
    )
"""
_ALERTS = "SELECT detector, severity, count(*) FROM alerts GROUP BY ALL ORDER BY ALL"
_NEWEST_ALERT = """
    SELECT a.step, a.detector, n.name, a.severity, a.detail
    FROM alerts AS a LEFT JOIN layer_names AS n USING (layer)
    ORDER BY a.step DESC, a.severity, n.name LIMIT 1
"""
# the newest row of an incident counts
_OPEN = """
    SELECT count(*) FROM (
        SELECT closed FROM incidents QUALIFY row_number() OVER (
            PARTITION BY attempt, rank, incident ORDER BY step DESC, closed IS NOT NULL DESC
        ) = 1
    ) WHERE closed IS NULL
"""
_ENDED = """
    SELECT count(DISTINCT rank) FROM events
    WHERE kind = 'end' AND attempt = (SELECT max(attempt) FROM attempts)
"""


@dataclass(frozen=True)
class RunStatus:
    """One run at one moment.

    Attributes:
        run: its folder.
        state: "waiting" for a folder that no guard wrote to yet; "damaged" when run.json cannot
            be read; "recording"; "silent" when no step came for SILENT_STEPS of its steps, and
            SILENT_SECONDS at least; "ended" when every rank of its newest attempt closed.
        newest: when its newest step was recorded, or its attempt began; seconds since the epoch.
        last_step: number of its newest step, of any rank.
        steps_per_second: by the median of its newest 50 steps.
        loss: at the last step, of the lowest rank.
        alerts: how many by (detector, severity).
        open_incidents: how many are not closed, over all ranks.
        newest_alert: the alert of the latest step, as text; "" without one.
        missing_steps: steps between a rank's first and last that have no row: dropped or damaged.
        ranks: that recorded in the newest attempt.
        world_size: as many there are.
        damaged_files: of the trace, whose rows are missing.
        problem: why it cannot be read; "" if it can.
    """

    run: str
    state: State
    newest: float | None = None
    last_step: int | None = None
    steps_per_second: float | None = None
    loss: float | None = None
    alerts: tuple[tuple[str, str, int], ...] = ()
    open_incidents: int = 0
    newest_alert: str = ""
    missing_steps: int = 0
    ranks: int = 0
    world_size: int = 0
    damaged_files: int = 0
    problem: str = ""

    @property
    def alert_count(self) -> int:
        """Alerts of all detectors."""
        return sum(count for _, _, count in self.alerts)

    def as_object(self) -> dict[str, Any]:
        """As JSON; see `plain_json` for a loss that is no finite number."""
        alerts = [
            {"detector": detector, "severity": severity, "count": count}
            for detector, severity, count in self.alerts
        ]
        content: dict[str, Any] = plain(asdict(self))
        return {**content, "alerts": alerts}


def unread(run: Path, state: State, error: SdcGuardError) -> RunStatus:
    """The status of a folder that cannot be read."""
    return RunStatus(str(run), state, problem=error.what)


def status_of(reader: RunReader, now: float) -> RunStatus:
    """The status of a run as its reader saw it at its last refresh.

    Args:
        reader: of the run.
        now: seconds since the epoch.

    Raises:
        SdcGuardError: the trace cannot be read.
    """
    last_step, newest, ranks = reader.rows(_STEPS)[0]
    loss, seconds = None, None
    if last_step is not None:
        loss, seconds = reader.rows(_NEWEST, {"step": last_step})[0]
    attempts = reader.run_file.attempts
    started = [attempt.started for attempt in attempts[-1:]]
    world_size = reader.run_file.world_size
    status = RunStatus(
        run=str(reader.run),
        state="recording",
        newest=max([*started, *([] if newest is None else [newest])], default=None),
        last_step=last_step,
        steps_per_second=1 / seconds if seconds else None,
        loss=loss,
        alerts=tuple(reader.rows(_ALERTS)),
        open_incidents=reader.rows(_OPEN)[0][0],
        newest_alert=_newest_alert(reader),
        missing_steps=reader.rows(_MISSING)[0][0],
        ranks=ranks,
        world_size=world_size,
    )
    ended = reader.rows(_ENDED)[0][0]
    # a guard on one rank alone of several is all that there is to end
    if ended and ended >= min(world_size, max(ranks, 1)):
        status = replace(status, state="ended")
    return aged(replace(status, damaged_files=len(reader.damaged)), now)


def aged(status: RunStatus, now: float) -> RunStatus:
    """The same status at another moment, if nothing was recorded since."""
    if status.state not in ("recording", "silent") or status.newest is None:
        return status
    step = 1 / status.steps_per_second if status.steps_per_second else 0.0
    silent = now - status.newest > max(SILENT_SECONDS, SILENT_STEPS * step)
    return replace(status, state="silent" if silent else "recording")


def _newest_alert(reader: RunReader) -> str:
    rows = reader.rows(_NEWEST_ALERT)
    if not rows:
        return ""
    step, detector, layer, severity, detail = rows[0]
    text = _text(detail)
    where = f" in {layer}" if layer else ""
    return f"step {step}: {detector}{where} ({severity})" + (f": {text}" if text else "")


def _text(detail: str | None) -> str:
    try:
        content = json.loads(detail or "{}")
    except ValueError:
        return ""
    return str(content.get("text", "")) if isinstance(content, dict) else ""
