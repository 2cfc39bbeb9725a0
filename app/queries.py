"""What the pages ask of a run's tables: all SQL of the dashboard but that of the curves."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from forensics.watched import Watch
from sdc_guard.store.trace_reader import TraceReader

from .convicted import since_saved
from .details import detail_of
from .records import STATUSES, Alert, Checkpoint, Counted, Coverage, Incident, Newest

_COMPARED = """
    WITH counted AS (
        SELECT attempt, rank, kind, step, phase, count(*) AS n FROM digests GROUP BY ALL
    )
    SELECT coalesce(sum(least(found.n, carried.n)), 0)::BIGINT, count(DISTINCT found.step)
    FROM counted AS found JOIN counted AS carried USING (attempt, rank, kind)
    WHERE found.phase = 'before' AND carried.phase = 'after' AND carried.step = found.step - 1
    -- after a refresh the guard starts a new chain and compares nothing with what was before
    AND NOT EXISTS (
        SELECT 1 FROM events WHERE events.kind = 'refresh' AND events.attempt = found.attempt
        AND events.rank = found.rank AND events.step = found.step
    )
"""

# The newest row of an incident counts; of two rows of one step the one that says more.
_INCIDENTS = """
    WITH newest AS (
        SELECT * FROM incidents QUALIFY row_number() OVER (
            PARTITION BY attempt, rank, incident
            ORDER BY step DESC, closed IS NOT NULL DESC, length(evidence) DESC
        ) = 1
    )
    SELECT i.attempt, i.rank, i.opened, i.closed, i.verdict, i.evidence, count(a.step)
    FROM newest AS i LEFT JOIN alerts AS a ON a.attempt = i.attempt AND a.rank = i.rank
        AND a.step >= i.opened AND (i.closed IS NULL OR a.step <= i.closed)
    GROUP BY ALL ORDER BY i.opened, i.rank
"""

_ALERTS = """
    SELECT a.step, a.rank, coalesce(n.name, ''), a.detector, a.score, a.threshold, a.severity,
        a.detail
    FROM alerts AS a LEFT JOIN layer_names AS n USING (layer)
    WHERE a.attempt = $attempt AND a.rank = $rank AND a.step >= $opened
        AND ($closed IS NULL OR a.step <= $closed)
    ORDER BY a.step, a.severity, n.name LIMIT $limit
"""

# Rows carry no order within a step: of several about one file the most definite counts.
_CHECKPOINTS = """
    SELECT step, path, any_value(format), max(bytes), arg_max(status, weight),
        arg_max(coalesce(reason, ''), weight)
    FROM (SELECT *, CASE status WHEN 'corrupt' THEN 3 WHEN 'suspect' THEN 2 WHEN 'clean' THEN 1
        ELSE 0 END AS weight FROM checkpoints)
    GROUP BY step, path ORDER BY step, path
"""


# What the guard tells once of what it cannot see
_BLIND = """
    SELECT kind, detail FROM events
    WHERE kind IN ('capture', 'not carried', 'layers changed', 'steps lost')
    GROUP BY kind, detail ORDER BY min(step), kind, detail LIMIT 20
"""
_ENDED = """
    SELECT count(*) > 0 FROM events
    WHERE kind = 'end' AND attempt = (SELECT max(attempt) FROM attempts)
"""


def newest_step(reader: TraceReader) -> Newest | None:
    """The newest step, or None before the first."""
    row = reader.rows(
        "SELECT max(step), arg_max(time, step), arg_max(step_seconds, step) FROM steps"
    )[0]
    return None if row[0] is None else Newest(*row, ended=reader.rows(_ENDED)[0][0])


def coverage(reader: TraceReader, *, compared: bool = True) -> Coverage:
    """What was checked; without `compared` the digests, which are many, are not counted."""
    return covered(reader, counted(reader) if compared else None)


def counted(reader: TraceReader) -> Counted:
    """What takes a pass over all layers and digests."""
    newest = reader.rows("SELECT max(step) FROM steps")[0][0]
    return Counted(
        reader.rows("SELECT count(DISTINCT layer) FROM layers")[0][0],
        *reader.rows(_COMPARED)[0],
        watched=_watched(reader, newest),
        newest=newest,
    )


def rows_to_count(reader: TraceReader) -> int:
    """How many rows `counted` passes over."""
    found = reader.rows("SELECT (SELECT count(*) FROM layers) + (SELECT count(*) FROM digests)")
    return int(found[0][0])


def covered(reader: TraceReader, found: Counted | None) -> Coverage:
    """What was checked, with what was counted; None: nothing was."""
    steps = reader.rows(
        "SELECT count(DISTINCT step), min(step), max(step), arg_max(time, step),"
        " count(DISTINCT rank) FROM steps"
    )[0]
    shadow = reader.rows(
        "SELECT count(*), max(step), count(*) FILTER (loss IS DISTINCT FROM repeat_loss)"
        " FROM shadow"
    )[0]
    alerts = reader.rows(
        "SELECT count(*) FILTER (severity = 'proven'),"
        " count(*) FILTER (severity IS DISTINCT FROM 'proven') FROM alerts"
    )[0]
    trace = reader.run / "trace"
    damaged = sorted(
        (str(path.relative_to(trace)), reason) for path, reason in list(reader.damaged.items())
    )
    known = found or Counted(0, 0, 0)
    return Coverage(
        *steps,
        reader.run_file.world_size,
        len(reader.run_file.layers),
        known.layers_measured,
        known.digests,
        known.digest_steps,
        *shadow,
        *alerts,
        tuple(damaged),
        watched=known.watched,
        blind=tuple(f"{kind}: {_plain_detail(text)}" for kind, text in reader.rows(_BLIND)),
        counted_to=known.newest,
        is_counted=found is not None,
    )


def _watched(reader: TraceReader, newest: int | None) -> float | None:
    budgets = [attempt.digest_budget for attempt in reader.run_file.attempts]
    if newest is None or not any(budget is not None for budget in budgets):
        return None
    return Watch(reader).watched(newest).share


def _plain_detail(text: str | None) -> str:
    """An event's detail in words: what is a JSON object has a list of names per reason."""
    content = detail_of(text)
    if not content:
        return text or ""
    return "; ".join(
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in content.items()
    )


def incidents(reader: TraceReader) -> list[Incident]:
    """All incidents, by the step that opened them."""
    return [
        Incident(attempt, rank, opened, closed, verdict or "undetermined", detail_of(text), alerts)
        for attempt, rank, opened, closed, verdict, text, alerts in reader.rows(_INCIDENTS)
    ]


def alerts_of(reader: TraceReader, incident: Incident, limit: int) -> list[Alert]:
    """The first `limit` alerts of an incident, by step."""
    parameters = {
        "attempt": incident.attempt,
        "rank": incident.rank,
        "opened": incident.opened,
        "closed": incident.closed,
        "limit": limit,
    }
    return [Alert(*row[:7], detail_of(row[7])) for row in reader.rows(_ALERTS, parameters)]


def layer_of_alert(reader: TraceReader, step: int | None) -> str:
    """A layer that a proven alert of this step names, or else any; empty where none does."""
    rows = reader.rows(
        "SELECT name FROM alerts JOIN layer_names USING (layer) WHERE step = $step"
        " ORDER BY severity <> 'proven', name LIMIT 1",
        {"step": step},
    )
    return rows[0][0] if rows else ""


def alerted_layers(reader: TraceReader, most: int) -> list[str]:
    """The layers that alerts name, those with proven ones and with the most alerts first."""
    rows = reader.rows(
        "SELECT name FROM alerts JOIN layer_names USING (layer) GROUP BY name"
        " ORDER BY bool_or(severity = 'proven') DESC, count(*) DESC, name LIMIT $most",
        {"most": most},
    )
    return [name for (name,) in rows]


def checkpoints(reader: TraceReader) -> list[Checkpoint]:
    """All checkpoints, by step, those too whose files are not there any more.

    Each with what was proven of it since it was saved.
    """
    found = [
        Checkpoint(
            step,
            path or "",
            kind or "",
            size,
            status if status in STATUSES else "untested",
            reason,
            deleted=_deleted(reader.run, path or ""),
        )
        for step, path, kind, size, status, reason in reader.rows(_CHECKPOINTS)
    ]
    return since_saved(reader.run, found)


def _deleted(run: Path, path: str) -> bool:
    """Whether a checkpoint's file or folder is gone while the folder that held it is there.

    Without that folder nothing is known: the trace alone was copied here, or comes from a lake.
    """
    if not path:
        return False
    try:
        place = run / path
        return place.parent.is_dir() and not os.path.lexists(place)
    except (OSError, ValueError):
        return False  # no name that this system could have


def step_facts(reader: TraceReader, step: int) -> pd.DataFrame:
    """What was recorded at one step: a row per rank."""
    query = """
        SELECT s.rank, s.attempt, s.loss, s.grad_norm, s.lr, s.step_seconds, s.tokens,
            s.loss_scale, s.skipped, p.loss AS shadow_loss
        FROM steps AS s LEFT JOIN shadow AS p USING (attempt, rank, step)
        WHERE s.step = $step ORDER BY s.rank
    """
    return reader.arrow(query, {"step": step}).to_pandas()


def layer_names(reader: TraceReader) -> list[str]:
    """The layers' names in the order of their numbers."""
    return [layer.name for layer in reader.run_file.layers]
