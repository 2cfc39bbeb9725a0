"""Reading a trace while it is being written: an in-memory DuckDB with views over its files.

Nothing here opens a file that anybody writes, so there is no lock to wait for.

The tables come by their own names and hold the run as it is now: where a resume repeated steps,
only the newest attempt's. The schema `every` holds the rows of all attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UsageError
from .run_file import Attempt, RunFile
from .schema import TABLES
from .segments import listing, rank_folder, ranks

_DUCKDB_TYPES = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}
_LAST_STEP = 2**63 - 1


class RunReader:
    """A run's tables by SQL.

    Args:
        run: the run's folder.
        attempt: read the run as it was during this attempt; the newest by default.

    Attributes:
        run_file: names, layers and attempts of the run.
        damaged: files that could not be opened, with the reason; their rows are missing.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read`.
    """

    def __init__(self, run: Path, *, attempt: int | None = None) -> None:
        self.run = run
        self.attempt = attempt
        self.run_file = RunFile.read(run)
        self.damaged: dict[Path, str] = {}
        self._attached: dict[Path, str] = {}
        self._connection = duckdb.connect(":memory:")
        for setting in (
            "enable_progress_bar = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
        ):
            self._connection.execute(f"SET {setting}")
        self._connection.execute("CREATE SCHEMA every")
        self.refresh()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the seals."""
        self._connection.close()

    def refresh(self) -> None:
        """See what was published since the reader was made."""
        self.run_file = RunFile.read(self.run)
        self._layers_view()
        spans = lineage(self.run_file.attempts, self.attempt)
        for table in TABLES:
            self._table_views(table, spans)

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of a query, as tuples.

        Raises:
            UsageError: the SQL is wrong; the message is DuckDB's.
        """
        values = dict(parameters or {})
        return self._answer(lambda cursor: cursor.execute(query, values).fetchall())

    def arrow(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of a query as an Arrow table.

        Raises:
            UsageError: the SQL is wrong, or it has no result; the message is DuckDB's.
        """
        values = dict(parameters or {})

        def fetch(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
            relation = cursor.sql(query, params=values)
            if relation is None:
                raise UsageError("the query has no result; give a SELECT", where=query)
            return relation.to_arrow_table()

        return self._answer(fetch)

    def attach(self, name: str, other: RunReader) -> None:
        """Bring the tables of `other` into this reader as the schema `name`, for comparisons."""
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        for table in (*TABLES, "layer_names"):
            content = other.arrow(f"SELECT * FROM {table}")  # noqa: F841 - because DuckDB reads it by its name
            self._connection.execute(f"CREATE TABLE {name}.{table} AS SELECT * FROM content")

    def _answer(self, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        # a cursor per call: a connection shared by threads loses results without an error
        try:
            try:
                return fetch(self._connection.cursor())
            except duckdb.IOException:
                # a segment was folded into a seal after it was listed: list again, once
                self.refresh()
                return fetch(self._connection.cursor())
        except duckdb.Error as error:
            raise UsageError(f"the query failed: {str(error).splitlines()[0]}") from None

    def _layers_view(self) -> None:
        names = pa.table(
            {
                "layer": pa.array([x.id for x in self.run_file.layers], pa.int32()),
                "name": pa.array([x.name for x in self.run_file.layers], pa.string()),
                "numel": pa.array([x.numel for x in self.run_file.layers], pa.int64()),
            }
        )
        self._connection.register("layer_names_now", names)
        self._connection.execute(
            "CREATE OR REPLACE TABLE layer_names AS SELECT * FROM layer_names_now"
        )
        self._connection.unregister("layer_names_now")

    def _table_views(self, table: str, spans: list[tuple[int, int, int]]) -> None:
        sources = [
            source for rank in ranks(self.run, table) for source in self._sources(table, rank)
        ]
        sources.append(_no_rows(table))
        self._connection.execute(
            f"CREATE OR REPLACE VIEW every.{table} AS {' UNION ALL BY NAME '.join(sources)}"
        )
        live = " OR ".join(
            f"(attempt = {attempt} AND step >= {first} AND step < {end})"
            for attempt, first, end in spans
        )
        condition = live if len(spans) > 1 or self.attempt is not None else "true"
        self._connection.execute(
            f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM every.{table} WHERE {condition}"
        )

    def _sources(self, table: str, rank: int) -> list[str]:
        found = listing(rank_folder(self.run, table, rank))
        sources = []
        segments = [path for path in found.live_segments() if self._segment_opens(path)]
        if segments:
            files = ", ".join(_quoted(path) for path in segments)
            sources.append(
                f"SELECT *, {rank} AS rank FROM read_parquet([{files}], hive_partitioning = false)"
            )
        for seal in found.live_seals():
            name = self._attach_seal(seal)
            if name is not None:
                sources.append(f"SELECT *, {rank} AS rank FROM {name}.{table}")
        return sources

    def _segment_opens(self, path: Path) -> bool:
        try:
            pq.read_metadata(path)
        except FileNotFoundError:
            return False  # folded into a seal since it was listed; the seal is in the list
        except (OSError, pa.ArrowException) as error:
            self.damaged[path] = str(error).splitlines()[0]
            return False
        return True

    def _attach_seal(self, path: Path) -> str | None:
        if path not in self._attached:
            name = f"seal_{len(self._attached)}"
            try:
                self._connection.execute(f"ATTACH {_quoted(path)} AS {name} (READ_ONLY)")
            except duckdb.Error as error:
                self.damaged[path] = str(error).splitlines()[0]
                return None
            self._attached[path] = name
        return self._attached[path]


def lineage(attempts: Sequence[Attempt], upto: int | None = None) -> list[tuple[int, int, int]]:
    """Which attempt counts for which steps: (attempt, first step, end step), end excluded.

    An attempt that starts at step s supersedes all that earlier ones recorded from s on.
    """
    spans: list[tuple[int, int, int]] = []
    for attempt in attempts:
        if upto is not None and attempt.attempt > upto:
            break
        kept = [
            (number, first, min(end, attempt.first_step))
            for number, first, end in spans
            if first < attempt.first_step
        ]
        spans = [*kept, (attempt.attempt, attempt.first_step, _LAST_STEP)]
    return spans


def _no_rows(table: str) -> str:
    columns = ", ".join(
        f"NULL::{_DUCKDB_TYPES[column.type]} AS {column.name}" for column in TABLES[table]
    )
    return f"SELECT {columns}, NULL::INTEGER AS rank WHERE false"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
