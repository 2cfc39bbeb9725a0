"""Rows on their way to a segment: kept as they came, made into Arrow many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .schema import TABLES


@dataclass(frozen=True)
class Rows:
    """Rows of one table: arrays of `count` values, or scalars that count for every row."""

    table: str
    columns: Mapping[str, Any]
    count: int

    @property
    def nbytes(self) -> int:
        """About as many as they will be in Arrow."""
        return self.count * 8 * len(TABLES[self.table])


def count_of(columns: Mapping[str, Any]) -> int:
    """The number of rows that these columns make."""
    return max((len(c) for c in columns.values() if is_array(c)), default=1)


def is_array(column: Any) -> bool:
    """Whether a column has a value for each row."""
    return isinstance(column, (list, tuple)) or (isinstance(column, np.ndarray) and column.ndim > 0)


def batch(
    table: str, waiting: Sequence[Rows], reject: Callable[[int, Exception], None]
) -> pa.RecordBatch:
    """All rows in one batch.

    Args:
        table: its schema counts; a missing column is null.
        waiting: rows of that table, in order.
        reject: called with the number of rows and the error for those that do not fit; the
            others must not suffer from them.
    """
    try:
        return _batch(table, waiting)
    except Exception:  # noqa: BLE001 - because a value can be wrong in any way
        sound = []
        for rows in waiting:
            try:
                sound.append(_batch(table, [rows]))
            except Exception as error:  # noqa: BLE001 - as above
                reject(rows.count, error)
        return pa.concat_batches([_batch(table, []), *sound])


def _batch(table: str, waiting: Sequence[Rows]) -> pa.RecordBatch:
    schema = TABLES[table]
    for rows in waiting:
        unknown = set(rows.columns) - set(schema.names)
        if unknown:
            raise KeyError(f"no column {', '.join(sorted(unknown))}")
    counts = [rows.count for rows in waiting]
    arrays = [
        _column([rows.columns.get(name) for rows in waiting], counts, schema.field(name).type)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(parts: list[Any], counts: list[int], kind: pa.DataType) -> pa.Array:
    arrays = [is_array(part) for part in parts]
    if not parts:
        return _array([], kind)
    if not any(arrays):
        if all(count == 1 for count in counts):
            return _array(parts, kind)
        if all(part == parts[0] for part in parts):
            return _repeated(parts[0], sum(counts), kind)
        if not pa.types.is_string(kind) and not any(part is None for part in parts):
            return _array(np.repeat(np.asarray(parts), counts), kind)
    elif all(isinstance(part, np.ndarray) for part in parts):
        return _array(np.concatenate(parts), kind)
    return pa.concat_arrays(
        [
            _array(part, kind) if array else _repeated(part, count, kind)
            for part, array, count in zip(parts, arrays, counts, strict=True)
        ],
        memory_pool=pa.system_memory_pool(),
    )


# of the system's memory: see `segment_file.encode`
def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, type=kind, memory_pool=pa.system_memory_pool())


def _repeated(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=kind), count, memory_pool=pa.system_memory_pool())
