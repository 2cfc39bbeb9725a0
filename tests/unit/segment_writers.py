"""Segments written one by one, each by a writer of the test's choice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sdc_guard.store.schema import TABLES
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import next_number, rank_folder, segment_path


class SegmentWriter:
    """A process that writes for one rank and counts its rows, as the real one does.

    Args:
        run: the run's folder.
        name: the writer's name; None writes as before there were names.
        rank: whose folder.
        attempt: of all its rows.
    """

    def __init__(self, run: Path, name: str | None, *, rank: int = 0, attempt: int = 1) -> None:
        self._run, self._name, self._rank, self._attempt = run, name, rank, attempt
        self._rows: dict[str, int] = {}

    def write(self, table: str, step: Sequence[int] | np.ndarray, **columns: Any) -> Path:
        """Publish one segment."""
        count = len(step)
        values = {"attempt": [self._attempt] * count, "step": step, **columns}
        arrays = [
            pa.array(values[f.name], f.type) if f.name in values else pa.nulls(count, f.type)
            for f in TABLES[table]
        ]
        content = encode(
            pa.Table.from_arrays(arrays, schema=TABLES[table]),
            writer=self._name,
            rows_before=None if self._name is None else self._rows.get(table, 0),
        )
        self._rows[table] = self._rows.get(table, 0) + count
        folder = rank_folder(self._run, table, self._rank)
        folder.mkdir(parents=True, exist_ok=True)
        path = segment_path(folder, next_number(folder))
        path.write_bytes(content)
        return path

    def steps(self, first: int, last: int, *, shift: float = 0.0) -> Path:
        """A segment of the steps first to last, the loss of step s being s² + shift."""
        steps = np.arange(first, last + 1)
        return self.write("steps", steps, loss=steps.astype(float) ** 2 + shift)

    def layers(self, first: int, last: int, count: int) -> Path:
        """A segment of `count` layers, the norm of layer l at step s being s + l / 1000."""
        steps = np.repeat(np.arange(first, last + 1), count)
        layers = np.tile(np.arange(count), last + 1 - first)
        norm = steps + layers / 1000
        return self.write("layers", steps, layer=layers, norm=norm, scope=["local"] * len(steps))


def age(run: Path, seconds: float = 11.0) -> None:
    """Make every seal that much older."""
    past = time.time() - seconds
    for seal in run.rglob("seal-*.duckdb"):
        os.utime(seal, (past, past))


def flip(path: Path, place: int | None = None) -> None:
    """Flip a bit of a file, in its middle unless told."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 8
    path.write_bytes(content)


def delete(paths: Iterable[Path]) -> None:
    """Delete files."""
    for path in paths:
        path.unlink()
