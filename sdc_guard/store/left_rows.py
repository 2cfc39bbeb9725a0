"""The rows that a killed process left in its ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from .. import kept_evidence
from . import row_frames
from .ring import frames
from .rows import Rows, batch
from .schema import TABLES

# What tells the rows of a step from others: those of evidence are made all at once. Of the other
# tables the whole row does.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": ("attempt", "step"),
    "layers": ("attempt", "step", "scope"),
    "digests": ("attempt", "step", "phase", "kind", "layer"),
    "shadow": ("attempt", "step"),
}


def left_tables(content: bytes, numel: Mapping[int, int]) -> dict[str, pa.RecordBatch]:
    """By table, the rows that a ring's frames hold or make; each once, in their order.

    Args:
        content: of the ring's file.
        numel: elements of each layer, by its number.

    Some of them may have been published before the process was killed.
    """
    queued: dict[str, list[Rows]] = {}
    made: dict[str, list[Rows]] = {}
    for is_made, rows in _rows(content, dict(numel)):
        if rows.table in TABLES:
            (made if is_made else queued).setdefault(rows.table, []).append(rows)
    found = {}
    for table in TABLES:
        whole = _batch(table, queued.get(table, []))
        if table in made:
            more = _batch(table, made[table])
            whole = pa.concat_batches([whole, _without(more, whole, KEYS[table])])
        if whole.num_rows:
            found[table] = _in_order(whole)
    return found


def _rows(content: bytes, numel: dict[int, int]) -> Iterator[tuple[bool, Rows]]:
    """Whether rows are made of evidence, and the rows."""
    for payload in frames(content):
        try:
            frame = msgpack.unpackb(payload, strict_map_key=False)
            if frame[0] == row_frames.ROWS:
                found = [(False, row_frames.rows_of(frame))]
            else:
                found = [(True, rows) for rows in kept_evidence.rows_of(frame, numel)]
        except Exception:  # noqa: BLE001 - because a frame of another version, or no frame at all, may hold anything
            continue
        yield from found


def _batch(table: str, rows: list[Rows]) -> pa.RecordBatch:
    return batch(table, rows, lambda _count, _error: None)


def _in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """By step: those that were queued and those that are made of evidence took turns."""
    attempt, step = rows.column("attempt"), rows.column("step")
    if attempt.null_count or step.null_count:
        return rows
    return rows.take(pa.array(np.lexsort((step.to_numpy(), attempt.to_numpy()))))


def _without(rows: pa.RecordBatch, held: pa.RecordBatch, keys: tuple[str, ...]) -> pa.RecordBatch:
    known = set(_keys(held, keys))
    kept = np.array([key not in known for key in _keys(rows, keys)], dtype=bool)
    return rows.filter(pa.array(kept))


def _keys(rows: pa.RecordBatch, keys: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(key).to_pylist() for key in keys), strict=True)
