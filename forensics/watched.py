"""How much of a run's state was watched: which steps are recorded, and what was compared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from typing import Any

from sdc_guard.store.lineage import lineage
from sdc_guard.store.trace_reader import TraceReader

from .chain import LINKS, refreshes
from .compare_sql import STATE_ONLY

_STEPS = """
    SELECT step, any_value(attempt), count(DISTINCT rank) FROM steps GROUP BY step
"""

# per step: ranks that digested before it and after it, and tensors before it and after it
_DIGESTS = f"""
    SELECT step, any_value(attempt), count(*) FILTER (phase = 'before'),
        count(*) FILTER (phase = 'after'), coalesce(sum(n) FILTER (phase = 'before'), 0)::BIGINT,
        coalesce(sum(n) FILTER (phase = 'after'), 0)::BIGINT
    FROM (
        SELECT attempt, step, phase, rank, count(*) AS n FROM digests WHERE {STATE_ONLY}
        GROUP BY ALL
    )
    GROUP BY step
"""

_FIRST_SEEN = f"""
    SELECT min(step) FROM digests WHERE phase = 'after' AND {STATE_ONLY}
    GROUP BY rank, kind, layer ORDER BY 1
"""
# a file that was sealed late, or with doubts, had not all of the state digested for it
_SAVED = """
    SELECT DISTINCT step FROM checkpoints WHERE status = 'clean' OR path LIKE 'archive/%'
"""


@dataclass(frozen=True)
class Watched:
    """How many of the `possible` transitions of a tensor from step to step were compared."""

    compared: int
    possible: int

    @property
    def share(self) -> float:
        """Between 0 and 1; 1 when there was none to compare."""
        return min(self.compared / self.possible, 1.0) if self.possible else 1.0


@dataclass(frozen=True)
class _Step:
    """A recorded step.

    Attributes:
        compared: tensors compared with what the step before had left.
        left: how many tensors it left, if all were digested; else None.
        whole: whether all is there that was due.
    """

    compared: int
    left: int | None
    whole: bool


class Watch:
    """What is recorded of the steps of a run.

    Args:
        reader: of the run.
    """

    def __init__(self, reader: TraceReader) -> None:
        spans = lineage(reader.run_file.attempts, reader.attempt)
        self._first = spans[0][1] if spans else 0
        self._steps = _steps(reader)
        self._seen = [row[0] for row in reader.rows(_FIRST_SEEN)]
        self._saved = [row[0] for row in reader.rows(_SAVED)]
        # two columns, and no struct of them, which takes longer to tell apart
        kinds = len(reader.rows(f"SELECT DISTINCT rank, kind FROM digests WHERE {STATE_ONLY}"))
        self._most = kinds * len(reader.run_file.layers)

    def lost(self, upto: int) -> list[int]:
        """Steps up to `upto` of which nothing is recorded."""
        return [step for step in range(self._first, upto + 1) if step not in self._steps]

    def holes(self, upto: int) -> list[int]:
        """Steps up to `upto` of which nothing is recorded, or not all that was due."""
        steps = range(self._first, upto + 1)
        return [n for n in steps if n not in self._steps or not self._steps[n].whole]

    def watched(self, upto: int) -> Watched:
        """How much of the state's way up to the step `upto` was compared.

        Under a digest budget every tensor counts as there from the first step on.
        """
        steps = [self._steps[n] for n in sorted(self._steps) if n <= upto]
        state = self._state(upto)
        possible = sum(step.left or state for step in steps[:-1])
        return Watched(sum(step.compared for step in steps), possible)

    def _state(self, upto: int) -> int:
        """How many tensors the state has; as many as it may have until a checkpoint tells."""
        seen = bisect_right(self._seen, upto)
        told = any(step <= upto for step in self._saved)
        return seen if told else max(seen, self._most)


def percent(share: float) -> str:
    """A share of 1 in percent, never rounded up."""
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return f"{floor(share * 1000) / 10:g} %"


def _steps(reader: TraceReader) -> dict[int, _Step]:
    partial = {x.attempt for x in reader.run_file.attempts if x.digest_budget is not None}
    compared = _compared(reader, partial)
    digests = {step: row for step, *row in reader.rows(_DIGESTS)}
    rows = {step: row for step, *row in reader.rows(_STEPS)}
    most_rows, most_digests = _most_ranks(rows.values()), _most_ranks(digests.values())
    refreshed = refreshes(reader)
    steps: dict[int, _Step] = {}
    past = 0
    for number, (attempt, ranks) in sorted(rows.items()):
        _, before, after, found, left = digests.get(number, (attempt, 0, 0, 0, 0))
        if number in refreshed or number - 1 not in rows:
            past = 0  # nothing to compare with
        every = attempt not in partial
        due = most_digests.get(attempt, 1) if every else 0
        steps[number] = _Step(
            # where all are digested, those found are those that were left
            compared=compared.get(number, min(past, found)),
            left=left if every and left else None,
            whole=ranks == most_rows[attempt] and min(before, after) >= due,
        )
        past = left if every else 0
    return steps


def _compared(reader: TraceReader, attempts: set[int]) -> dict[int, int]:
    """Step to the number of tensors compared with what one of `attempts` had left, or found."""
    if not attempts:
        return {}
    columns = "found.step, count(DISTINCT (found.rank, found.kind, found.layer))"
    chosen = ", ".join(map(str, sorted(attempts)))
    which = f"(found.attempt IN ({chosen}) OR gone.attempt IN ({chosen}))"
    wanted = f"{which} AND found.{STATE_ONLY}"
    return dict(reader.rows(f"SELECT {columns} {LINKS} AND {wanted} GROUP BY found.step"))


def _most_ranks(rows: Iterable[list[Any]]) -> dict[int, int]:
    """Attempt to the largest number of ranks that any of its steps has."""
    most: dict[int, int] = {}
    for attempt, ranks, *_ in rows:
        most[attempt] = max(most.get(attempt, 0), ranks)
    return most
