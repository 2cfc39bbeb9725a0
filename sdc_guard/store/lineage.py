"""Which attempt counts for which steps of a run that was resumed."""

from __future__ import annotations

from collections.abc import Sequence

from .run_file import Attempt

LAST_STEP = 2**63 - 1

Span = tuple[int, int, int]


def lineage(attempts: Sequence[Attempt], upto: int | None = None) -> list[Span]:
    """Which attempt counts for which steps: (attempt, first step, end step), end excluded.

    An attempt that starts at step s supersedes all that earlier ones recorded from s on.

    Args:
        attempts: in the order of their starts.
        upto: the run as it was during this attempt; None for all of them.
    """
    spans: list[Span] = []
    for attempt in attempts:
        if upto is not None and attempt.attempt > upto:
            break
        kept = [
            (number, first, min(end, attempt.first_step))
            for number, first, end in spans
            if first < attempt.first_step
        ]
        spans = [*kept, (attempt.attempt, attempt.first_step, LAST_STEP)]
    return spans


def counts(spans: Sequence[Span], attempt: int, step: int) -> bool:
    """Whether what an attempt did at a step was not superseded.

    Args:
        spans: by `lineage`.
    """
    return any(number == attempt and first <= step < end for number, first, end in spans)
