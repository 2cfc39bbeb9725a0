"""Steps that are in no file because a ring was written over before they were published.

A ring keeps what the writer thread has not published. Where the thread falls behind by more than
the ring holds, and the process is killed just then, the oldest of it is lost. It shows afterwards:
each step of a process was in its ring once, and the ring went round; a step up to the newest there
that is neither in it nor in a file was written over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from .schema import TABLES

KIND: Final = "steps lost"  # of an event, at the first step that was lost
_NAMED: Final = 3  # ranges of steps that its text names

_GAPS: Final = """
    SELECT step + 1, next - 1 FROM (
        SELECT step, lead(step) OVER (ORDER BY step) AS next FROM (
            SELECT DISTINCT step FROM ({known}) WHERE attempt = $attempt AND step <= $newest
        )
    ) WHERE next - 1 > step ORDER BY step
"""
_FIRST: Final = "SELECT min(step) FROM ({known}) WHERE attempt = $attempt"


def lost_steps(
    connection: duckdb.DuckDBPyConnection,
    steps: pa.RecordBatch,
    published: Sequence[str],
    beside: Sequence[pa.RecordBatch],
    first_steps: Mapping[int, int],
) -> pa.RecordBatch | None:
    """An event for the steps that a ring lost.

    Args:
        connection: where the SELECTs hold.
        steps: rows of the table "steps" that a ring holds which went round.
        published: SELECTs of all files of that table and rank, none of which is damaged.
        beside: the same table's rows in the other rings of that rank: a process that needs a
            larger ring makes another.
        first_steps: of each attempt.

    Returns:
        one row of the table "events"; None where no step is lost.
    """
    attempt = pc.max(steps.column("attempt")).as_py()
    if attempt is None:
        return None
    newest = pc.max(steps.filter(pc.equal(steps.column("attempt"), attempt)).column("step"))
    asked = {"attempt": attempt, "newest": newest.as_py()}
    held = pa.Table.from_batches([steps, *beside]).select(["attempt", "step"])
    connection.register("held_steps", held)
    try:
        known = "SELECT attempt, step FROM held_steps"
        for select in published:
            known += f" UNION ALL SELECT attempt, step FROM ({select})"
        gaps = connection.execute(_GAPS.format(known=known), asked).fetchall()
        first = connection.execute(_FIRST.format(known=known), {"attempt": attempt}).fetchall()
    finally:
        connection.unregister("held_steps")
    began = first_steps.get(attempt)
    if began is not None and began < first[0][0]:
        gaps = [(began, first[0][0] - 1), *gaps]
    return _event(attempt, gaps) if gaps else None


def _event(attempt: int, gaps: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    count = sum(last - first + 1 for first, last in gaps)
    which = ", ".join(
        f"{first}" if first == last else f"{first} to {last}" for first, last in gaps[:_NAMED]
    )
    if len(gaps) > _NAMED:
        which += f" and {len(gaps) - _NAMED} more ranges"
    text = (
        f"steps {which} ({count} in all) were overwritten in the ring before being published: the "
        "process was killed while its writer was behind"
    )
    row = {"attempt": attempt, "step": gaps[0][0], "kind": KIND, "detail": text}
    return pa.RecordBatch.from_pylist([row], schema=TABLES["events"])
