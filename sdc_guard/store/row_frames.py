"""Rows as frames of the ring: those that are queued, and not made of evidence that it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from .rows import Rows, count_of
from .schema import TABLES

ROWS: Final = "rows"
_KIND: Final = re.compile(r"[<|][biuf][1248]")  # of an array's numbers


def row_frame(table: str, columns: Mapping[str, Any], count: int) -> tuple[Any, ...]:
    """Rows of a table."""
    return ROWS, table, count, {name: _packed(value) for name, value in columns.items()}


def rows_of(frame: Sequence[Any]) -> Rows:
    """The way back, from an unpacked frame.

    Raises:
        ValueError: it is none.
        Exception: likewise, of any kind.
    """
    _, table, count, packed = frame
    columns = {name: _unpacked(value) for name, value in packed.items()}
    if table not in TABLES or count_of(columns) != count:
        raise ValueError(f"no rows of {table}")
    return Rows(table, columns, count)


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
        if not _KIND.fullmatch(kind):
            raise ValueError(f"no kind of numbers: {kind}")
        return np.frombuffer(content, dtype=np.dtype(kind)).reshape(shape)
    return value[""] if isinstance(value, dict) else value
