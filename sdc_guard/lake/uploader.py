"""Committing a run to a lake, piece by piece, each once and only once."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from ..errors import LakeUnavailable, SdcGuardError
from ..store.run_file import RunFile
from . import tables
from .commit import Committed, commit
from .connection import NAME, connect, text, unavailable
from .identity import run_id
from .loading import loading
from .location import Lake
from .pending import Piece, Stream, batches, pending
from .spans import Spans

MOST_PIECES = 512  # of one commit
MOST_BYTES = 64 * 2**20  # of one commit's files; a seal that is larger goes alone
_TRIES = 200
# it runs on the machine that trains
_MODEST = {
    "threads": "2",
    "memory_limit": "2GB",
    "temp_directory": str(Path(tempfile.gettempdir()) / f"sdc-guard-upload-{os.getpid()}"),
}
_LONGEST_PAUSE = 2.0  # seconds


@dataclass
class Progress:
    """What an upload did.

    Attributes:
        run: the run's identity in the lake.
        commits: transactions.
        pieces: segments, and ranges of segments taken from seals.
        rows: their rows.
        damaged: files that could not be uploaded, with the reason.
    """

    run: str = ""
    commits: int = 0
    pieces: int = 0
    rows: int = 0
    damaged: dict[Path, str] = field(default_factory=dict)


class Uploader:
    """Uploads one run; what is in the lake is kept in memory between uploads.

    Nothing in the run's folder is changed. Any number of uploaders may work at once, on any
    machine, for the same ranks or for others.

    Args:
        run: the run's folder.
        lake: where to.
        ranks: whose rows; None for all ranks that have a folder.
        most_pieces: of one commit.
        pause: waits a number of seconds.
    """

    def __init__(
        self,
        run: Path,
        lake: Lake,
        ranks: Collection[int] | None = None,
        *,
        most_pieces: int = MOST_PIECES,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._lake = lake
        self._ranks = ranks
        self._most_pieces = most_pieces
        self._pause = pause
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._known: dict[Stream, Spans] = {}
        self._identity = ""
        self._described: str | None = None
        self._damaged: dict[Path, str] = {}

    def upload(self) -> Progress:
        """Commit everything that the folder holds by now and the lake does not.

        Raises:
            RunNotFound, RunFormatError: as `RunFile.read`.
            UsageError: an extension is missing, or the lake keeps its data elsewhere.
            LakeUnavailable: the catalog or the data fails; what was committed stays.
        """
        try:
            return self._upload()
        except duckdb.Error as error:
            self.close()
            raise unavailable(self._lake, error) from None
        except SdcGuardError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the lake; the next upload connects and asks anew."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _upload(self) -> Progress:
        self._damaged = {}  # what could not be read may be readable by now
        progress = Progress(run_id(RunFile.read(self._run)))
        connection = self._connected(progress.run)
        while True:
            pieces = pending(self._run, self._ranks, self._known, self._damaged)
            # after the files were listed: a row's attempt is described before the row is there
            run_file = RunFile.read(self._run)
            groups = list(batches(pieces, self._most_pieces, MOST_BYTES))
            if not groups and run_file.to_text() != self._described:
                groups = [[]]
            for group in groups:
                self._commit(connection, run_file, group, progress)
            if not pieces:
                progress.damaged = dict(self._damaged)
                return progress

    def _connected(self, identity: str) -> duckdb.DuckDBPyConnection:
        if self._connection is not None and identity == self._identity:
            return self._connection
        self.close()
        self._connection = self._prepared()
        self._identity = identity
        self._described = tables.newest_description(self._connection, f"{NAME}.runs", identity)
        found: dict[Stream, list[tuple[int, int]]] = {}
        for table, rank, first, last in self._connection.execute(
            f"SELECT table_name, rank, first, last FROM {NAME}.uploaded WHERE run = ?", [identity]
        ).fetchall():
            found.setdefault((table, rank), []).append((first, last))
        self._known = {stream: Spans(spans) for stream, spans in found.items()}
        return self._connection

    def _prepared(self) -> duckdb.DuckDBPyConnection:
        """A connection to a lake that has its tables; several uploaders may make them at once."""
        tried = 0
        while True:
            tried += 1
            try:
                connection = connect(self._lake)
                for setting, value in _MODEST.items():
                    connection.execute(f"SET {setting} = {text(value)}")
                tables.create(connection)
                return connection
            except (duckdb.Error, LakeUnavailable):
                if tried == 5:
                    raise
            self._rest(tried)

    def _commit(
        self,
        connection: duckdb.DuckDBPyConnection,
        run_file: RunFile,
        pieces: list[Piece],
        progress: Progress,
    ) -> None:
        described = run_file.to_text()
        with loading(connection, pieces) as batch:
            self._damaged |= batch.damaged
            describe = described != self._described
            if not batch.loaded and not describe:
                return
            done = self._until_alone(
                lambda: commit(connection, run_file, batch.loaded, describe=describe)
            )
        self._described = described
        self._damaged |= done.inconsistent
        for stream, spans in done.known.items():
            self._known.setdefault(stream, Spans()).add(spans)
        progress.commits += 1
        progress.pieces += done.records
        progress.rows += done.rows

    def _until_alone(self, transaction: Callable[[], Committed]) -> Committed:
        """Do it again, from its snapshot on, as long as others commit at the same time."""
        tried = 0
        while True:
            tried += 1
            try:
                return transaction()
            except duckdb.TransactionException as error:
                if "conflict" not in str(error).lower() or tried == _TRIES:
                    raise
            self._rest(tried)

    def _rest(self, tried: int) -> None:
        longest = min(_LONGEST_PAUSE, 0.05 * 2**tried)
        self._pause(random.uniform(0, longest))
