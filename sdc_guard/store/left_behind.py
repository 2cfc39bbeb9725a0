"""What killed processes left in their rings: shown to readers, and folded into segments."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from .left_rows import KEYS, left_tables
from .publishing import publish_rows
from .ring import left_content, rings
from .run_file import RunFile
from .schema import TABLES
from .sources import FileVanishedError, TraceFiles
from .trace_reader import no_rows

_LISTINGS = 20  # of files that are folded into a seal while they are looked at


class LeftBehind:
    """The rows that a run's rings hold and its files do not; one per reader.

    Args:
        run: the run's folder.
        connection: where they become tables.
    """

    def __init__(self, run: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._run, self._connection = run, connection
        self._found: list[tuple[int, dict[str, pa.RecordBatch]]] = []

    def look(self, numel: Mapping[int, int]) -> None:
        """See what is left now. To be called before the files are listed, not after: rings are
        deleted when their rows are published.

        Args:
            numel: elements of each layer, by its number.
        """
        self._found = []
        for rank, path in rings(self._run):
            with left_content(path) as content:
                if content is not None:
                    self._found.append((rank, left_tables(content, numel)))

    def sources(self, table: str, published: Callable[[int], Sequence[str]]) -> list[str]:
        """A SELECT for the rows of each ring, with their rank.

        Args:
            table: of the trace.
            published: gives the SELECTs of all files of a rank.
        """
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS left_behind")
        found = []
        for number, (rank, tables) in enumerate(self._found):
            if table in tables:
                name = f"memory.left_behind.{table}_{number}"
                rows = unpublished(self._connection, table, tables[table], published(rank))
                self._connection.register("left_rows", rows)
                self._connection.execute(
                    f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM left_rows"
                )
                self._connection.unregister("left_rows")
                found.append(f"SELECT *, {rank} AS rank FROM {name}")
        return found


def unpublished(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    rows: pa.RecordBatch,
    published: Sequence[str],
) -> pa.Table:
    """Those of the rows that no file holds.

    Args:
        connection: where the SELECTs hold.
        table: of the trace.
        rows: of a ring.
        published: SELECTs of all files of that rank.
    """
    whole = pa.Table.from_batches([rows])
    if not published:
        return whole
    steps = [step for step in rows.column("step").to_pylist() if step is not None]
    recent = f" WHERE step >= {min(steps)}" if len(steps) == rows.num_rows else ""
    same = " AND ".join(
        f"p.{key} IS NOT DISTINCT FROM l.{key}" for key in KEYS.get(table, TABLES[table].names)
    )
    published = [*published, no_rows(table)]  # a segment of before may lack a column
    connection.register("rows_of_ring", whole)
    try:
        return connection.sql(
            f"SELECT l.* FROM rows_of_ring AS l WHERE NOT EXISTS (SELECT 1 FROM"
            f" (SELECT * FROM ({' UNION ALL BY NAME '.join(published)}){recent}) AS p WHERE {same})"
        ).to_arrow_table()
    finally:
        connection.unregister("rows_of_ring")


def fold(run: Path, rank: int | None = None) -> int:
    """Publish the rows of rings whose processes are gone, and delete those.

    Safe to be killed, and to be done by several processes at once.

    Args:
        run: the run's folder.
        rank: of whose rings; of all by default.

    Returns:
        how many rows there were.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read`.
        OSError: as the file system gave it; what was not published is still in the ring.
    """
    count = 0
    for of_rank, path in rings(run):
        if rank not in (None, of_rank):
            continue
        with left_content(path, alone=True) as content:
            if content is None:
                continue
            numel = {layer.id: layer.numel for layer in RunFile.read(run).layers}
            for table, rows in left_tables(content, numel).items():
                new = _new(run, table, of_rank, rows)
                if new.num_rows:
                    writer = secrets.token_hex(8)
                    publish_rows(run, table, of_rank, new, writer=writer, rows_before=0)
                    count += new.num_rows
            path.unlink(missing_ok=True)
    return count


def _new(run: Path, table: str, rank: int, rows: pa.RecordBatch) -> pa.Table:
    with duckdb.connect(":memory:") as connection:
        files = TraceFiles(run, connection)
        for _ in range(_LISTINGS):
            try:
                files.list_all(tables=[table], ranks=[rank])
                new = unpublished(connection, table, rows, files.sources(table))
                return new.select(TABLES[table].names).cast(TABLES[table])
            except FileVanishedError:
                continue
            except duckdb.Error:  # a file is gone since it was listed, or a seal is damaged inside
                files.read_whole(table)
    raise OSError(f"the files of {run / 'trace' / table} vanish while they are read")
