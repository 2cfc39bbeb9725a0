"""Whose rows a file of the trace holds, and which: known without the file's neighbours.

A seal has these as its table `contents`; a segment's are read from its rows and its metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np
import pyarrow as pa

from .segment_file import Segment


@dataclass(frozen=True)
class Part:
    """The rows of one writer and attempt in one file.

    Attributes:
        writer: who wrote them; None: not recorded.
        attempt: the attempt of the rows.
        first_segment, last_segment: numbers of the first and last segment that held any.
        segments: how many segments held any.
        rows: how many there are.
        rows_before: rows that this writer had written before them; None: not recorded.
        first_step, last_step: the least and the greatest step.
        begins_at, ends_at: the step of the row that was recorded first and last.
        backward: how often a row has a lower step than the one recorded just before it.
    """

    writer: str | None
    attempt: int
    first_segment: int
    last_segment: int
    segments: int
    rows: int
    rows_before: int | None
    first_step: int
    last_step: int
    begins_at: int
    ends_at: int
    backward: int


_INTEGERS = pa.int64()
SCHEMA = pa.schema(
    [(f.name, pa.string() if f.name == "writer" else _INTEGERS) for f in fields(Part)]
)
COLUMNS = ", ".join(SCHEMA.names)


def parts_of_segment(segment: Segment, number: int) -> list[Part]:
    """The contents of a sound segment; none if it has no rows or no steps."""
    table = segment.read(["attempt", "step"])
    writer, before = segment.writer, segment.rows_before
    if not table.num_rows or table["step"].null_count or table["attempt"].null_count:
        return []
    attempts, steps = table["attempt"].to_numpy(), table["step"].to_numpy()
    found = []
    for attempt in sorted(set(attempts.tolist())):
        own = steps[attempts == attempt]
        found.append(
            Part(
                writer,
                attempt,
                number,
                number,
                1,
                len(own),
                before,
                int(own.min()),
                int(own.max()),
                int(own[0]),
                int(own[-1]),
                int(np.count_nonzero(own[1:] < own[:-1])),
            )
        )
        before = None if before is None else before + len(own)
    return found


def joined(parts: Iterable[Part]) -> list[Part]:
    """The contents of a file that holds the rows of several."""
    found: dict[tuple[str | None, int], Part] = {}
    for part in sorted(parts, key=lambda part: part.first_segment):
        key = (part.writer, part.attempt)
        found[key] = _followed_by(found[key], part) if key in found else part
    return list(found.values())


def _followed_by(one: Part, two: Part) -> Part:
    return replace(
        one,
        last_segment=max(one.last_segment, two.last_segment),
        segments=one.segments + two.segments,
        rows=one.rows + two.rows,
        first_step=min(one.first_step, two.first_step),
        last_step=max(one.last_step, two.last_step),
        ends_at=two.ends_at,
        backward=one.backward + two.backward + (two.begins_at < one.ends_at),
    )


def to_arrow(parts: Sequence[Part]) -> pa.Table:
    """The table `contents` of a seal."""
    return pa.Table.from_arrays(
        [
            pa.array(column, kind)
            for column, kind in zip(
                zip(*map(astuple, parts), strict=True) if parts else [()] * len(SCHEMA),
                SCHEMA.types,
                strict=True,
            )
        ],
        schema=SCHEMA,
    )


def rows_in(parts: Iterable[Part]) -> int:
    """How many rows there are in all."""
    return sum(part.rows for part in parts)
