"""Steps that are in no file because a ring was written over before they were published.

A ring keeps what the writer thread has not published. Where the thread falls behind by more than
the ring holds, and the process is killed just then, the oldest of it is lost. It shows afterwards:
each step of a process was in its ring once, and the ring went round; a step after the newest in a
file, up to the newest in the ring, that is not there was written over. A step that is missing among
those in files is not the ring's loss: they are published in their order.
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

_PUBLISHED: Final = "SELECT max(step) FROM ({published}) WHERE attempt = $attempt"
_GAPS: Final = """
    SELECT step + 1, next - 1 FROM (
        SELECT step, lead(step) OVER (ORDER BY step) AS next FROM (
            SELECT DISTINCT step FROM held_steps
            WHERE attempt = $attempt AND step BETWEEN $last AND $newest
            UNION SELECT $last
        )
    ) WHERE next - 1 > step ORDER BY step
"""


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
    last = _last_published(connection, attempt, published)
    if last is None:
        last = first_steps.get(attempt, 0) - 1
    asked = {"attempt": attempt, "last": last, "newest": newest.as_py()}
    held = pa.Table.from_batches([steps, *beside]).select(["attempt", "step"])
    connection.register("held_steps", held)
    try:
        gaps = connection.execute(_GAPS, asked).fetchall()
    finally:
        connection.unregister("held_steps")
    return _event(attempt, gaps) if gaps else None


def _last_published(
    connection: duckdb.DuckDBPyConnection, attempt: int, published: Sequence[str]
) -> int | None:
    if not published:
        return None
    every = " UNION ALL ".join(f"SELECT attempt, step FROM ({select})" for select in published)
    asked = {"attempt": attempt}
    found: int | None
    (found,) = connection.execute(_PUBLISHED.format(published=every), asked).fetchall()[0]
    return found


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
