"""The writer thread: takes rows from the training thread, publishes them as segments.

The training thread only appends to a bounded queue. Whatever goes wrong with the disk stays in
this thread: the rows are kept up to the bound and tried again, and the trouble is counted.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .atomic import publish
from .schema import TABLES
from .segments import listing, rank_folder, segment_path

_log = logging.getLogger("sdc_guard")

FLUSH_SECONDS = 1.0
FLUSH_STEPS = 20
QUEUE_LIMIT = 10_000  # batches of rows; some minutes of a fast loop, a few MB


@dataclass
class Health:
    """What the guard knows of its own state.

    Attributes:
        written: rows published and acknowledged.
        dropped: rows given up because the queue or the backlog was full.
        errors: things that went wrong inside the guard and did not reach the training.
        last_error: the newest of them, one line.
    """

    written: int = 0
    dropped: int = 0
    errors: int = 0
    last_error: str = ""
    told: set[str] = field(default_factory=set, repr=False)

    def trouble(self, where: str, error: BaseException) -> None:
        """Count an error, keep its text, and tell of each kind of place once."""
        self.errors += 1
        self.last_error = f"{where}: {type(error).__name__}: {error}"
        if where not in self.told:
            self.told.add(where)
            _log.warning("SDC Guard: %s; training goes on", self.last_error)


@dataclass
class _Flush:
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class _Rows:
    table: str
    columns: Mapping[str, Any]
    count: int


class Writer:
    """Publishes rows of every table for one rank of one run.

    Args:
        run: the run's folder; folders below it are made when first needed.
        rank: the only rank whose folder this process writes.
        health: where rows and troubles are counted.
    """

    def __init__(self, run: Path, rank: int, health: Health) -> None:
        self._run = run
        self._rank = rank
        self._health = health
        self._queue: queue.Queue[_Rows | _Flush | None] = queue.Queue(QUEUE_LIMIT)
        self._backlog: deque[_Rows] = deque()
        self._steps_waiting = 0
        self._thread = threading.Thread(target=self._serve, name="sdc-guard-writer", daemon=True)
        self._thread.start()

    def append(self, table: str, **columns: Any) -> None:
        """Queue rows of `table`; never blocks, never raises.

        Args:
            table: a name of `schema.TABLES`.
            **columns: one-dimensional arrays of one length, or scalars that count for every row.
                A missing column is null. The caller must not change an array afterwards.
        """
        count = max((len(c) for c in columns.values() if _is_array(c)), default=1)
        try:
            self._queue.put_nowait(_Rows(table, columns, count))
        except queue.Full:
            self._drop(count)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything queued so far is published.

        Returns:
            False when it is not: the disk refuses, or the time (seconds) ran out.
        """
        request = _Flush()
        try:
            self._queue.put(request, timeout=timeout)
        except queue.Full:
            return False
        return request.done.wait(timeout) and not self._backlog

    def nudge(self) -> None:
        """Ask for what is queued to be published soon, without waiting for it."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_Flush())

    def close(self, timeout: float = 30.0) -> None:
        """Publish what is left and end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout)

    def _serve(self) -> None:
        last = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, last + FLUSH_SECONDS - time.monotonic()))
            except queue.Empty:
                self._publish_all()
                last = time.monotonic()
                continue
            if isinstance(item, _Rows):
                self._take(item)
            due = self._steps_waiting >= FLUSH_STEPS
            if not isinstance(item, _Rows) or due or time.monotonic() - last > FLUSH_SECONDS:
                self._publish_all()
                last = time.monotonic()
            if isinstance(item, _Flush):
                item.done.set()
            if item is None:
                return

    def _take(self, rows: _Rows) -> None:
        if len(self._backlog) >= QUEUE_LIMIT:
            self._drop(rows.count)
            return
        self._backlog.append(rows)
        self._steps_waiting += rows.table == "steps"

    def _drop(self, count: int) -> None:
        self._health.dropped += count
        self._health.trouble("recording", BufferError("rows dropped, the disk is too slow"))

    def _publish_all(self) -> None:
        self._steps_waiting = 0
        for table in sorted({rows.table for rows in self._backlog}):
            waiting = [rows for rows in self._backlog if rows.table == table]
            try:
                count = self._publish(table, waiting)
            except Exception as error:  # noqa: BLE001 - because recording must outlive any of its troubles
                self._health.trouble("recording", error)
                continue
            self._health.written += count
            self._backlog = deque(rows for rows in self._backlog if rows.table != table)

    def _publish(self, table: str, waiting: list[_Rows]) -> int:
        folder = rank_folder(self._run, table, self._rank)
        folder.mkdir(parents=True, exist_ok=True)
        content = pa.Table.from_batches([_batch(rows) for rows in waiting], TABLES[table])
        target = segment_path(folder, listing(folder).next_number())
        publish(target, lambda path: pq.write_table(content, path, compression="zstd"))
        return content.num_rows


def _is_array(column: Any) -> bool:
    return isinstance(column, (np.ndarray, list, tuple))


def _batch(rows: _Rows) -> pa.RecordBatch:
    schema = TABLES[rows.table]
    arrays = []
    for name in schema.names:
        column = rows.columns.get(name)
        if not _is_array(column):
            column = [column] * rows.count
        arrays.append(pa.array(column, type=schema.field(name).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
