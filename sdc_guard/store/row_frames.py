"""Rows as frames of the ring: those that are queued, and not made of evidence that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from .rows import Rows

ROWS: Final = "rows"


def row_frame(table: str, columns: Mapping[str, Any], count: int) -> tuple[Any, ...]:
    """Rows of a table."""
    return ROWS, table, count, {name: _packed(value) for name, value in columns.items()}


def rows_of(frame: Sequence[Any]) -> Rows:
    """The way back, from an unpacked frame."""
    _, table, count, columns = frame
    return Rows(table, {name: _unpacked(value) for name, value in columns.items()}, count)


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tobytes(), list(value.shape)]
    if isinstance(value, np.generic):
        return value.item()
    # a list of the script's own is told from an array's by what it is in
    return {"": list(value)} if isinstance(value, (list, tuple)) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        kind, content, shape = value
        return np.frombuffer(content, dtype=np.dtype(kind)).reshape(shape)
    return value[""] if isinstance(value, dict) else value
