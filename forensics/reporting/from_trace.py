"""What a report says of a run's record."""

from __future__ import annotations

import json
from typing import Any, Final

from sdc_guard.signals.environment import differences
from sdc_guard.store.trace_reader import TraceReader

from ..compare_sql import STATE_ONLY
from ..watched import Watch, percent
from .facts import MAX_ALERTS, AlertRow, Attempted, Recorded

_STEPS: Final = """
    SELECT count(DISTINCT step), min(step), max(step), count(DISTINCT step) FILTER (skipped),
        count(DISTINCT rank) FROM steps
"""
_DIGESTS: Final = f"SELECT count(*) FROM digests WHERE {STATE_ONLY}"
_SHADOW: Final = """
    SELECT count(*), count(*) FILTER (loss IS DISTINCT FROM repeat_loss) FROM shadow
"""
# a NaN makes every layer alert at once: one row, that names the worst and counts the others
_ALERTS: Final = """
    SELECT step, detector, coalesce(severity, ''), coalesce(arg_max(name, weight), ''),
        count(DISTINCT layer), list_sort(list_distinct(list(rank))), arg_max(score, weight),
        arg_max(threshold, weight), coalesce(arg_max(text, weight), '')
    FROM (
        SELECT *, detail->>'text' AS text, coalesce(score, 0) AS weight
        FROM alerts LEFT JOIN layer_names USING (layer)
    )
    GROUP BY ALL ORDER BY step, detector LIMIT $limit
"""
_ALERT_COUNT: Final = "SELECT count(*) FROM alerts"
# what the guard tells once of what it cannot see
_BLIND: Final = """
    SELECT min(step), kind, coalesce(detail, '') FROM events
    WHERE kind IN ('capture', 'not carried', 'layers changed', 'steps lost')
    GROUP BY kind, detail ORDER BY 1, 2, 3 LIMIT 20
"""
_INCIDENTS: Final = """
    SELECT opened, arg_max(evidence, (step, closed IS NOT NULL)) AS newest
    FROM incidents GROUP BY attempt, rank, incident, opened
    HAVING count(*) FILTER (closed IS NOT NULL) = 0 ORDER BY opened
"""
# several rows may be about one file, and the worst counts
_CLEAN: Final = """
    SELECT step, path FROM checkpoints GROUP BY step, path
    HAVING bool_or(status = 'clean') AND NOT bool_or(status IN ('suspect', 'corrupt'))
    ORDER BY step, path
"""
# a step has a row at most in each of them, or none
_FEW_ROWS: Final = ("steps", "shadow", "alerts", "incidents", "events", "checkpoints")
_PROVEN: Final = "SELECT min(step) FROM alerts WHERE severity = 'proven'"


def recorded(reader: TraceReader) -> Recorded:
    """How much was recorded and compared."""
    steps, first, last, skipped, ranks = reader.rows(_STEPS)[0]
    shadow, unequal = reader.rows(_SHADOW)[0]
    watched = None if last is None else Watch(reader).watched(last)
    return Recorded(
        steps=steps,
        first=first,
        last=last,
        skipped=skipped,
        layers=len(reader.run_file.layers),
        attempts=len(reader.run_file.attempts),
        world_size=reader.run_file.world_size,
        ranks=ranks,
        digests=reader.rows(_DIGESTS)[0][0],
        compared=0 if watched is None else watched.compared,
        possible=0 if watched is None else watched.possible,
        shadow=shadow,
        shadow_unequal=unequal,
    )


def alerts(reader: TraceReader) -> tuple[tuple[AlertRow, ...], int]:
    """The first MAX_ALERTS rows by step, and how many alerts there are."""
    rows = reader.rows(_ALERTS, {"limit": MAX_ALERTS})
    found = tuple(
        AlertRow(step, detector, severity, layer, layers, tuple(ranks), score, threshold, text)
        for step, detector, severity, layer, layers, ranks, score, threshold, text in rows
    )
    return found, alert_count(reader)


def alert_count(reader: TraceReader) -> int:
    """How many alerts there are."""
    return int(reader.rows(_ALERT_COUNT)[0][0])


def attempts(reader: TraceReader) -> tuple[Attempted, ...]:
    """Each start, and what of its environment had changed."""
    found, before = [], None
    for one in reader.run_file.attempts:
        now = one.environment if isinstance(one.environment, dict) else {}
        changed = () if before is None else _changed(before, now)
        found.append(
            Attempted(one.attempt, one.first_step, one.started, now, changed, one.digest_budget)
        )
        before = now
    return tuple(found)


def _changed(before: dict[str, Any], now: dict[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((name, one, two) for name, (one, two) in differences(before, now).items())


def blind(reader: TraceReader) -> tuple[tuple[int, str, str], ...]:
    """What the guard told that it cannot see."""
    return tuple(reader.rows(_BLIND))


def damaged(reader: TraceReader) -> int:
    """How many files of the trace cannot be read.

    A block of a file is known to be damaged when it is read: of tables that have few rows all are.
    """
    for table in _FEW_ROWS:
        reader.rows(f"SELECT bit_xor(hash(t)) FROM every.{table} AS t")
    return len(reader.damaged)


def clean_checkpoints(reader: TraceReader) -> list[tuple[int, str]]:
    """Step and path of the checkpoints that the guard called clean, by step."""
    return [(step, path or "") for step, path in reader.rows(_CLEAN)]


def first_proven(reader: TraceReader) -> int | None:
    """The step of the first alert from an exact comparison, or None."""
    step: int | None = reader.rows(_PROVEN)[0][0]
    return step


def open_incidents(reader: TraceReader) -> list[tuple[int, str]]:
    """Those that are not closed: the step that opened each, and what it began with."""
    return [(opened, _first(evidence)) for opened, evidence in reader.rows(_INCIDENTS)]


def _first(evidence: str | None) -> str:
    try:
        content = json.loads(evidence or "{}")
    except (ValueError, RecursionError):
        return ""
    return str(content.get("first") or "") if isinstance(content, dict) else ""


def unseen(reader: TraceReader, known: Recorded) -> tuple[str, ...]:
    """What of the run is not known, a sentence each."""
    found = []
    if known.first is not None and known.last is not None:
        lost = known.last - known.first + 1 - known.steps
        if lost:
            found.append(f"{lost:,} steps between the first and the last left no record.")
    if known.steps and known.ranks < known.world_size:
        found.append(f"Only {known.ranks} of {known.world_size} ranks have recorded steps.")
    if known.steps and not known.digests:
        found.append("No digest of the state is recorded: a change between steps leaves no proof.")
    elif known.share < 1:
        found.append(
            f"{percent(known.share)} of the state's transitions from step to step were compared; "
            "a change in the rest was not looked for."
        )
    if known.steps and not known.shadow:
        found.append("No shadow pass is recorded: that a step repeats bit for bit was not tested.")
    found += [f"{trouble.text}." for trouble in reader.losses()]
    return tuple(found)
