"""What a run's attempts have in common, from the alerts of all of them."""

from __future__ import annotations

from sdc_guard.detect.recurrence import AttemptAlerts, Recurrence, recurrences
from sdc_guard.store.trace_reader import TraceReader

_LAST = "SELECT attempt, max(step) FROM every.steps GROUP BY attempt"
# all attempts: a resume supersedes the steps that end in an alert
_ALERTS = "SELECT DISTINCT detector, attempt, step FROM every.alerts ORDER BY ALL"


def recurring(reader: TraceReader) -> list[Recurrence]:
    """Alerts at the same distance from the start of each attempt."""
    attempts = reader.run_file.attempts
    if len(attempts) < 2:
        return []
    last = dict(reader.rows(_LAST))
    steps: dict[str, dict[int, list[int]]] = {}
    for detector, attempt, step in reader.rows(_ALERTS):
        steps.setdefault(detector, {}).setdefault(attempt, []).append(step)
    return recurrences(
        {
            detector: [
                AttemptAlerts(
                    one.attempt,
                    one.first_step,
                    last.get(one.attempt, one.first_step),
                    by_attempt.get(one.attempt, ()),
                )
                for one in attempts
            ]
            for detector, by_attempt in steps.items()
        }
    )
