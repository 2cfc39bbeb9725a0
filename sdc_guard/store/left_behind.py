"""What killed processes left in their rings: shown to readers, and folded into segments."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from .left_rows import KEYS, left_tables
from .overrun import lost_steps
from .publishing import publish_rows
from .ring import left_content, rings, went_round
from .run_file import RunFile
from .schema import TABLES
from .sources import FileVanishedError, TraceFiles
from .trace_reader import no_rows
from .troubles import file_troubles

_LISTINGS = 20  # of files that are folded into a seal while they are looked at


class LeftBehind:
    """The rows that a run's rings hold and its files do not; one per reader.

    Args:
        run: the run's folder.
        connection: where they become tables.
    """

    def __init__(self, run: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._run, self._connection = run, connection
        self._found: list[tuple[int, dict[str, pa.RecordBatch], bool]] = []
        self._first_steps: Mapping[int, int] = {}

    def look(self, numel: Mapping[int, int], first_steps: Mapping[int, int]) -> None:
        """See what is left now. To be called before the files are listed, not after: rings are
        deleted when their rows are published.

        Args:
            numel: elements of each layer, by its number.
            first_steps: of each attempt.
        """
        self._found, self._first_steps = [], first_steps
        for rank, path in rings(self._run):
            with left_content(path) as content:
                if content is not None:
                    self._found.append((rank, left_tables(content, numel), went_round(content)))

    def sources(self, table: str, files: TraceFiles) -> list[str]:
        """A SELECT for the rows of each ring, with their rank.

        Args:
            table: of the trace.
            files: of the run, listed after `look`.

        Raises:
            FileVanishedError: a listed file is gone.
        """
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS left_behind")
        found = []
        for number, (rank, tables, overrun) in enumerate(self._found):
            batch = tables.get(table)
            if table == "events" and overrun:
                beside = [
                    other["steps"]
                    for place, (of_rank, other, _) in enumerate(self._found)
                    if of_rank == rank and place != number and "steps" in other
                ]
                batch = _with_lost(self._connection, files, rank, tables, beside, self._first_steps)
            if batch is not None:
                name = f"memory.left_behind.{table}_{number}"
                published = files.sources(table, rank=rank)
                rows = unpublished(self._connection, table, batch, published)
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
            run_file = RunFile.read(run)
            numel = {layer.id: layer.numel for layer in run_file.layers}
            tables = left_tables(content, numel)
            if went_round(content):
                beside = _beside(run, of_rank, path, numel)
                events = _lost(run, of_rank, tables, beside, run_file.first_steps)
                if events is not None:  # first: published steps do not show what was lost any more
                    others = {name: rows for name, rows in tables.items() if name != "events"}
                    tables = {"events": events, **others}
            for table, rows in tables.items():
                new = _new(run, table, of_rank, rows)
                if new.num_rows:
                    writer = secrets.token_hex(8)
                    publish_rows(run, table, of_rank, new, writer=writer, rows_before=0)
                    count += new.num_rows
            path.unlink(missing_ok=True)
    return count


def _beside(run: Path, rank: int, path: Path, numel: Mapping[int, int]) -> list[pa.RecordBatch]:
    """The steps in other rings of a rank whose processes are gone."""
    found = []
    for of_rank, other in rings(run):
        if of_rank == rank and other != path:
            with left_content(other) as content:
                if content is not None and "steps" in (tables := left_tables(content, numel)):
                    found.append(tables["steps"])
    return found


def _lost(
    run: Path,
    rank: int,
    tables: Mapping[str, pa.RecordBatch],
    beside: Sequence[pa.RecordBatch],
    first_steps: Mapping[int, int],
) -> pa.RecordBatch | None:
    """The ring's events, with one for steps that were lost before its oldest."""
    with duckdb.connect(":memory:") as connection:
        files = TraceFiles(run, connection)
        for _ in range(_LISTINGS):
            try:
                files.list_all(tables=["steps"], ranks=[rank])
                return _with_lost(connection, files, rank, tables, beside, first_steps)
            except (FileVanishedError, duckdb.Error):
                continue
    return tables.get("events")


def _with_lost(
    connection: duckdb.DuckDBPyConnection,
    files: TraceFiles,
    rank: int,
    tables: Mapping[str, pa.RecordBatch],
    beside: Sequence[pa.RecordBatch],
    first_steps: Mapping[int, int],
) -> pa.RecordBatch | None:
    """Likewise; of a rank with damaged or missing files none is said to be lost by its ring."""
    events = tables.get("events")
    if "steps" not in tables:
        return events
    published = files.sources("steps", rank=rank) if rank in files.ranks("steps") else []
    if any(trouble.rank == rank for trouble in file_troubles(files, ["steps"])):
        return events
    lost = lost_steps(connection, tables["steps"], published, beside, first_steps)
    if lost is None:
        return events
    return lost if events is None else pa.concat_batches([lost, events])


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
