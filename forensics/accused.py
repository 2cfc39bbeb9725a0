"""Which rank the alerts of a step accuse, if they accuse one and no more."""

from __future__ import annotations

import json
from typing import Any, Final

from sdc_guard.detect.replica_alerts import DETECTOR as REPLICAS
from sdc_guard.store.machines import Machine, attempt_of, machines
from sdc_guard.store.trace_reader import TraceReader

# What a rank finds in its own state, by an exact comparison with what it left there itself.
_OWN: Final = ("carried_digest", "step_counter")
_PEERS: Final = "peer_"  # detectors that compare a rank with the others, and name it in the detail
_ALERTS: Final = """
    SELECT DISTINCT rank, detector, CASE WHEN detector = $replicas OR detector LIKE $peers
        THEN detail END FROM alerts
    WHERE step = $step AND (severity = 'proven') = $proven LIMIT 10000
"""
_OTHERS: Final = """
    SELECT rank FROM every.steps WHERE attempt = $attempt AND rank > 0
    UNION ALL SELECT rank FROM alerts WHERE step = $step AND rank > 0 LIMIT 1
"""


def accused_rank(reader: TraceReader, step: int, *, proven: bool) -> int | None:
    """The rank that the alerts of a step accuse; None where they name none, or several.

    A gradient that was reduced is odd on every rank: the sensor's alerts accuse none.

    Args:
        reader: of the run.
        step: whose alerts.
        proven: by exact comparisons; else by comparisons with peers, which suspect.
    """
    if ran_alone(reader, step):
        return 0
    asked = {"step": step, "proven": proven, "replicas": REPLICAS, "peers": f"{_PEERS}%"}
    ranks = {_of(*row, proven=proven) for row in reader.rows(_ALERTS, asked)} - {None}
    return ranks.pop() if len(ranks) == 1 else None


def ran_alone(reader: TraceReader, step: int) -> bool:
    """Whether rank 0 was the only one at a step: a resume may have fewer ranks than before it."""
    if reader.run_file.world_size > 1:
        return False
    return not reader.rows(_OTHERS, {"attempt": attempt_of(reader, step), "step": step})


def machine_of(reader: TraceReader, step: int, rank: int | None) -> Machine | None:
    """Where a rank ran at a step; None where that, or the rank, is not known."""
    return None if rank is None else machines(reader, step).get(rank)


def _of(rank: int, detector: str, detail: str | None, *, proven: bool) -> int | None:
    if proven and detector in _OWN:
        return rank
    if detector == REPLICAS and proven:
        return _number(detail, "culprit")
    return _number(detail, "rank") if detector.startswith(_PEERS) and not proven else None


def _number(detail: str | None, name: str) -> int | None:
    try:
        content: Any = json.loads(detail or "{}")
    except (ValueError, RecursionError):
        return None
    value = content.get(name) if isinstance(content, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
