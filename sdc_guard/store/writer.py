"""The writer thread: takes rows from the training thread, publishes them as segments.

The training thread only appends to a bounded queue, and wakes the other one no more than once for
40 steps: each time that one wakes, both want Python's lock. Whatever goes wrong with the disk stays
in this thread: the rows are kept up to the bound and tried again, and the trouble is counted.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from .health import Health
from .left_behind import fold
from .publishing import publish_rows
from .ring import LARGEST, SMALLEST, Ring, ring_folder
from .row_frames import row_frame
from .rows import Rows, batch, count_of, is_array
from .schema import TABLES

__all__ = ["Health", "Writer"]

FLUSH_SECONDS = 2.0
FLUSH_STEPS = 40
QUEUE_LIMIT = 10_000  # batches of rows waiting for the thread; some minutes of a fast loop
BACKLOG_LIMIT = 256 * 2**20  # bytes that wait for a disk that refuses them
_LAST_SECOND = "keeping the last second for after a crash"


@dataclass
class _Flush:
    done: threading.Event = field(default_factory=threading.Event)
    complete: bool = False


class Writer:
    """Publishes rows of every table for one rank of one run.

    Args:
        run: the run's folder; folders below it are made when first needed.
        rank: the only rank whose folder this process writes.
        health: where rows and troubles are counted.
        on_segment: called in the writer's thread with the number of each segment of "steps".
        ring_bytes: size of the ring that keeps what is not yet published; 0 for none.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        health: Health,
        on_segment: Callable[[int], None] | None = None,
        ring_bytes: int = SMALLEST,
    ) -> None:
        self._run = run
        self._rank = rank
        self._health = health
        self._on_segment = on_segment
        self._queue: deque[Rows | _Flush | None] = deque()
        self._backlog: dict[str, list[Rows | pa.RecordBatch]] = {}
        self._backlog_bytes = 0
        self._name = secrets.token_hex(8)
        self._published: dict[str, int] = {}  # rows by table
        self._numbers: dict[str, int] = {}  # of the newest segment, by table
        self._steps_queued = 0
        self._awake = threading.Event()
        self._newest: tuple[Any, Any] = None, None  # attempt and step
        self._refused_since: float | None = None  # seconds since the epoch
        self._closed = False
        self._full_rings: list[Ring] = []  # what they hold may not be published yet
        self._ring = self._make_ring(ring_bytes)
        self._thread = threading.Thread(target=self._serve, name="sdc-guard-writer", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Batches of rows that wait for the thread."""
        return len(self._queue)

    def keep(self, frame: Sequence[Any]) -> bool:
        """Put a frame into the ring, where it survives this process; False if it is not there."""
        if self._ring is None or self._closed:
            return False
        try:
            return self._ring.put(frame)
        except (TypeError, ValueError, OverflowError):
            return False  # what cannot be packed fits no table either: the writer will tell
        except OSError as error:
            self._ring.leave()
            self._ring = None
            self._health.trouble(_LAST_SECOND, error)
            return False

    def make_room(self, size: int) -> None:
        """Have a ring of `size` bytes at least from now on, as far as rings may be that large."""
        if self._ring is None or min(size, LARGEST) <= self._ring.size:
            return
        self._full_rings.append(self._ring)
        self._ring = self._make_ring(size)

    def append(self, table: str, *, kept: bool = False, **columns: Any) -> None:
        """Queue rows of `table`; never raises, and waits for nothing but a write to the ring.

        Args:
            table: a name of `schema.TABLES`.
            kept: whether the ring holds already what these rows are made of.
            **columns: one-dimensional arrays of one length, or scalars that count for every row.
                A missing column is null. The caller must not change an array afterwards. Rows
                that do not fit the table are dropped and counted.
        """
        count = count_of(columns)
        if self._closed:
            self._drop(count, RuntimeError("rows dropped, the writer is closed"))
            return
        if not kept:
            self.keep(row_frame(table, columns, count))
        if len(self._queue) >= QUEUE_LIMIT:
            self._drop(count, BufferError("rows dropped, the disk is too slow"))
            return
        self._queue.append(Rows(table, columns, count))
        if table == "steps":
            self._steps_queued += count
            if self._steps_queued >= FLUSH_STEPS:
                self._wake()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything queued so far is published.

        Returns:
            False when it is not: the disk refuses, or the time (seconds) ran out.
        """
        if not self._thread.is_alive():
            return not self._backlog
        request = _Flush()
        self._ask(request)
        return request.done.wait(timeout) and request.complete

    def nudge(self) -> None:
        """Ask for what is queued to be published soon, without waiting for it."""
        if not self._closed:
            self._wake()

    def close(self, timeout: float = 30.0) -> None:
        """Publish what is left and end the thread; rows that the disk still refuses are dropped."""
        if not self._thread.is_alive():
            return
        self._closed = True
        self._ask(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._health.trouble("closing", TimeoutError(f"the disk is stuck for {timeout:g} s"))
            return
        for ring in [*self._full_rings, *([self._ring] if self._ring is not None else [])]:
            ring.leave() if self._backlog else ring.remove()

    def _make_ring(self, size: int) -> Ring | None:
        if not size:
            return None
        try:
            return Ring(ring_folder(self._run), self._rank, size)
        except OSError as error:
            self._health.trouble(_LAST_SECOND, error)
            return None

    def _ask(self, request: _Flush | None) -> None:
        self._queue.append(request)
        self._wake()

    def _wake(self) -> None:
        self._steps_queued = 0
        self._awake.set()

    def _serve(self) -> None:
        self._fold()
        ended = False
        while not ended:
            self._awake.wait(FLUSH_SECONDS)
            self._awake.clear()
            requests, ended = self._take_all()
            self._publish_all()
            for request in requests:
                request.complete = not self._backlog
                request.done.set()
        self._give_up()

    def _take_all(self) -> tuple[list[_Flush], bool]:
        """Take what is queued now; the requests among it, and whether the last one was to end."""
        requests: list[_Flush] = []
        while self._queue:
            item = self._queue.popleft()
            if item is None:
                return requests, True
            if isinstance(item, Rows):
                self._take(item)
            else:
                requests.append(item)
        return requests, False

    def _fold(self) -> None:
        """Publish what this rank's process before this one left, if it was killed."""
        try:
            fold(self._run, self._rank)
        except Exception as error:  # noqa: BLE001 - because recording must outlive any of its troubles
            self._health.trouble("recovering rows of a killed process", error)

    def _take(self, rows: Rows) -> None:
        if rows.table not in TABLES:
            self._drop(rows.count, KeyError(rows.table), where="rows of an unknown table")
            return
        if self._backlog_bytes + rows.nbytes > BACKLOG_LIMIT:
            self._drop(rows.count, BufferError("rows dropped, the disk refuses them for too long"))
            return
        self._backlog.setdefault(rows.table, []).append(rows)
        self._backlog_bytes += rows.nbytes
        newest: Any = rows.columns.get("step")
        step = newest[-1] if is_array(newest) and len(newest) else newest
        if step is not None and rows.columns.get("attempt") is not None:
            self._newest = rows.columns["attempt"], step

    def _drop(self, count: int, error: Exception, *, where: str = "keeping rows") -> None:
        self._health.dropped += count
        self._health.trouble(where, error)

    def _give_up(self) -> None:
        left = sum(
            waiting.count if isinstance(waiting, Rows) else waiting.num_rows
            for table in self._backlog.values()
            for waiting in table
        )
        if left:
            self._drop(left, BufferError(f"{left} rows dropped at the end, the disk refuses them"))

    def _publish_all(self) -> None:
        self._publish_tables()
        if self._backlog:
            self._refused_since = self._refused_since or time.time()
        elif self._refused_since is not None and self._newest[0] is not None:
            self._take(self._trouble_is_over(self._refused_since))
            self._refused_since = None
            self._publish_tables()

    def _trouble_is_over(self, since: float) -> Rows:
        attempt, step = self._newest
        told = {
            "seconds": round(time.time() - since, 3),
            "error": self._health.last_error,
            "dropped": self._health.dropped,
        }
        columns = {"attempt": attempt, "step": step, "kind": "recorder trouble"}
        return Rows("events", {**columns, "detail": json.dumps(told)}, 1)

    def _publish_tables(self) -> None:
        for table in sorted(self._backlog):
            try:
                batches = self._in_arrow(table)
                number = self._publish(table, batches) if batches else None
            except Exception as error:  # noqa: BLE001 - because recording must outlive any of its troubles
                self._health.trouble("recording", error)
                continue
            del self._backlog[table]
            self._backlog_bytes -= sum(batch.nbytes for batch in batches)
            self._health.written += sum(batch.num_rows for batch in batches)
            if table == "steps" and number is not None and self._on_segment is not None:
                self._tell(self._on_segment, number)

    def _in_arrow(self, table: str) -> list[pa.RecordBatch]:
        """What waits for `table`, made into Arrow once, however often the disk refuses it."""
        waiting = self._backlog[table]
        batches = [item for item in waiting if not isinstance(item, Rows)]
        rows = [item for item in waiting if isinstance(item, Rows)]
        if rows:
            made = batch(table, rows, self._reject)
            self._backlog_bytes += made.nbytes - sum(item.nbytes for item in rows)
            batches += [made] if made.num_rows else []
            self._backlog[table] = list(batches)
        return batches

    def _reject(self, count: int, error: Exception) -> None:
        self._drop(count, error, where="rows that do not fit their table")

    def _tell(self, on_segment: Callable[[int], None], number: int) -> None:
        try:
            on_segment(number)
        except Exception as error:  # noqa: BLE001 - because recording must outlive any of its troubles
            self._health.trouble("compacting", error)

    def _publish(self, table: str, waiting: list[pa.RecordBatch]) -> int:
        before = self._published.get(table, 0)
        rows = pa.Table.from_batches(waiting, TABLES[table])
        number = publish_rows(
            self._run,
            table,
            self._rank,
            rows,
            writer=self._name,
            rows_before=before,
            newest=self._numbers.get(table),
        )
        self._published[table], self._numbers[table] = before + rows.num_rows, number
        return number
