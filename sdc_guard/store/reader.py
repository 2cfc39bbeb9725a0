"""Reading a trace while it is being written: an in-memory DuckDB with views over its files.

Nothing here opens a file that anybody writes, so there is no lock to wait for.

The tables come by their own names and hold the run as it is now: where a resume repeated steps,
only the newest attempt's. The schema `every` holds the rows of all attempts. Beside the tables
there are `layer_names` and `attempts` from run.json, and the views of `whole` over all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..errors import UsageError
from .lineage import LAST_STEP, lineage
from .run_file import RunFile
from .schema import TABLES
from .segment_file import segment_columns, segment_damage
from .segments import Listing, listing, quoted, rank_folder, ranks
from .whole import VIEWS

__all__ = ["RunReader", "lineage"]

_T = TypeVar("_T")

_DUCKDB_TYPES = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}
_ERRORS_OF_THE_QUERY = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConnectionException,
)


class RunReader:
    """A run's tables by SQL; safe to use from several threads.

    Args:
        run: the run's folder.
        attempt: read the run as it was during this attempt; the newest by default.

    Attributes:
        run_file: names, layers and attempts of the run.
        damaged: files that could not be read, with the reason; their rows are missing. A segment
            is checked when it is first seen, a seal when it is opened and when a query meets
            the damage.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read`.
        UsageError: the run has no such attempt.
    """

    def __init__(self, run: str | Path, *, attempt: int | None = None) -> None:
        self.run_file = RunFile.read(Path(run))
        self.run = Path(run).absolute()  # its views must outlive a change of the working folder
        self.attempt = attempt
        self._check_attempt()
        self.damaged: dict[Path, str] = {}
        self._attached: dict[Path, str] = {}
        # with their columns: a resume may have been recorded by a version that knows more of them
        self._sound_segments: dict[Path, tuple[str, ...]] = {}
        self._lock = threading.RLock()
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
        """See what was published since the reader was made, all tables at once."""
        with self._lock:
            self.run_file = RunFile.read(self.run)
            condition = self._condition()
            statements = [
                statement for table in TABLES for statement in self._views(table, condition)
            ]
            statements += [f"CREATE OR REPLACE VIEW {name} AS {sql}" for name, sql in VIEWS.items()]
            cursor = self._connection.cursor()
            cursor.begin()
            for name, content in self._described().items():
                cursor.register("described", content)
                cursor.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM described")
            for statement in statements:
                cursor.execute(statement)
            cursor.commit()
            cursor.close()

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of a query, as tuples.

        Raises:
            UsageError: the SQL is wrong, or it has no result; the message is DuckDB's.
        """
        values = dict(parameters or {})

        def fetch(cursor: duckdb.DuckDBPyConnection) -> list[Any]:
            # None, against its type, when the query holds no statement
            result: duckdb.DuckDBPyConnection | None = cursor.execute(query, values)
            return _result(result, query).fetchall()

        found: list[Any] = self._answer(fetch)
        return found

    def arrow(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of a query as an Arrow table.

        Raises:
            UsageError: the SQL is wrong, or it has no result; the message is DuckDB's.
        """
        values = dict(parameters or {})

        def fetch(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
            return _result(cursor.sql(query, params=values), query).to_arrow_table()

        return self._answer(fetch)

    def attach(self, name: str, other: RunReader) -> None:
        """Bring the tables of `other` into this reader as the schema `name`, for comparisons."""
        with self._lock:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
            for table in (*TABLES, *self._described()):
                content = other.arrow(f"SELECT * FROM {table}")  # noqa: F841 - because DuckDB reads it by its name
                self._connection.execute(
                    f"CREATE OR REPLACE TABLE {name}.{table} AS SELECT * FROM content"
                )

    def _answer(self, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        # first remedy: a segment was folded into a seal after it was listed
        remedies = [self.refresh, self._look_for_damage]
        while True:
            try:
                # a cursor per call: a connection shared by threads loses results without an error
                return fetch(self._connection.cursor())
            except duckdb.Error as error:
                if not remedies or isinstance(error, _ERRORS_OF_THE_QUERY):
                    message = str(error).splitlines()[0]
                    raise UsageError(f"the query failed: {message}") from None
            remedies.pop(0)()

    def _check_attempt(self) -> None:
        known = [attempt.attempt for attempt in self.run_file.attempts]
        if self.attempt is not None and self.attempt not in known:
            raise UsageError(
                f"the run has no attempt {self.attempt}",
                where=str(self.run),
                next_step=f"it has {', '.join(map(str, known)) or 'none'}",
            )

    def _condition(self) -> str:
        """Which rows count: SQL over `attempt` and `step`."""
        spans = lineage(self.run_file.attempts, self.attempt)
        if len(self.run_file.attempts) < 2:
            return "true"
        return " OR ".join(
            f"(attempt = {attempt} AND step >= {first}"
            + (")" if end == LAST_STEP else f" AND step < {end})")
            for attempt, first, end in spans
        )

    def _described(self) -> dict[str, pa.Table]:
        """The tables that come from run.json."""
        layers, attempts = self.run_file.layers, self.run_file.attempts
        return {
            "layer_names": pa.table(
                {
                    "layer": pa.array([layer.id for layer in layers], pa.int32()),
                    "name": pa.array([layer.name for layer in layers], pa.string()),
                    "numel": pa.array([layer.numel for layer in layers], pa.int64()),
                }
            ),
            "attempts": pa.table(
                {
                    "attempt": pa.array([a.attempt for a in attempts], pa.int32()),
                    "first_step": pa.array([a.first_step for a in attempts], pa.int64()),
                    "started": pa.array([a.started for a in attempts], pa.float64()),
                    "digest_budget": pa.array([a.digest_budget for a in attempts], pa.float64()),
                }
            ),
        }

    def _views(self, table: str, condition: str) -> list[str]:
        sources = [
            source for rank in ranks(self.run, table) for source in self._sources(table, rank)
        ]
        sources.append(_no_rows(table))
        return [
            f"CREATE OR REPLACE VIEW every.{table} AS {' UNION ALL BY NAME '.join(sources)}",
            f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM every.{table} WHERE {condition}",
        ]

    def _sources(self, table: str, rank: int) -> list[str]:
        found = listing(rank_folder(self.run, table, rank))
        # a damaged seal hides nothing: segments that it covers may still be there
        sound = {span: path for span, path in found.seals.items() if self._attach(path, table)}
        live = Listing(found.segments, sound)
        sources = [
            f"SELECT *, {rank} AS rank FROM {self._attached[seal]}.{table}"
            for seal in live.live_seals()
        ]
        segments: dict[tuple[str, ...], list[str]] = {}
        for path in live.live_segments():
            if self._segment_is_sound(path):
                segments.setdefault(self._sound_segments[path], []).append(quoted(path))
        sources += [
            f"SELECT *, {rank} AS rank"
            f" FROM read_parquet([{', '.join(files)}], hive_partitioning = false)"
            for files in segments.values()
        ]
        return sources

    def _segment_is_sound(self, path: Path) -> bool:
        if path in self._sound_segments:
            return True
        try:
            damage = segment_damage(path)
            columns = segment_columns(path) if damage is None else ()
        except FileNotFoundError:
            return False  # folded into a seal since it was listed; the seal is in the list
        if damage is not None:
            self.damaged[path] = damage
            return False
        self._sound_segments[path] = columns
        return True

    def _attach(self, path: Path, table: str) -> bool:
        if path in self.damaged:
            return False
        if path in self._attached:
            return True
        name = f"seal_{len(self._attached)}"
        try:
            self._connection.execute(f"ATTACH {_text(path)} AS {name} (READ_ONLY)")
            self._connection.execute(f"SELECT * FROM {name}.{table} LIMIT 0")
        except duckdb.Error as error:
            self.damaged[path] = str(error).splitlines()[0]
            return False
        self._attached[path] = name
        return True

    def _look_for_damage(self) -> None:
        """Read every file of the trace whole, leave out those that fail, and refresh."""
        with self._lock:
            self._sound_segments.clear()
            for path, name in self._attached.items():
                table = path.parent.parent.name
                try:
                    self._connection.cursor().execute(
                        f"SELECT bit_xor(hash(t)) FROM {name}.{table} AS t"
                    ).fetchall()
                except duckdb.Error as error:
                    self.damaged[path] = str(error).splitlines()[0]
            self.refresh()


def _result(result: _T | None, query: str) -> _T:
    if result is None:
        raise UsageError("the query has no result; give a SELECT", where=query)
    return result


def _no_rows(table: str) -> str:
    columns = ", ".join(
        f"NULL::{_DUCKDB_TYPES[column.type]} AS {column.name}" for column in TABLES[table]
    )
    return f"SELECT {columns}, NULL::INTEGER AS rank WHERE false"


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
