"""Reading a trace while it is being written: an in-memory DuckDB with views over its files.

Nothing here opens a file that anybody writes, so there is no lock to wait for. What a process left
that was killed before it could publish it is shown, too.

`queries` has the usual questions, `troubles` what can be wrong with the record.

The tables come by their own names and hold the run as it is now: where a resume repeated steps,
only the newest attempt's. The schema `every` holds the rows of all attempts. Beside the tables
there are `layer_names` and `attempts` from run.json, and the views of `whole` over all ranks.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..errors import UsageError
from .contents import Part, joined
from .left_behind import LeftBehind
from .lineage import LAST_STEP, lineage
from .run_file import RunFile
from .schema import TABLES
from .sources import SEAL_NAME, FileVanishedError, TraceFiles
from .troubles import Trouble, file_troubles, step_troubles
from .whole import VIEWS

__all__ = ["RunReader", "Trouble", "lineage"]

_T = TypeVar("_T")

_LISTINGS = 20  # of files that are folded while they are looked at, before one counts as missing
_WORDS = re.compile(r"\w+")
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
        attempt: the attempt that is read; None for the newest.

    Raises:
        RunNotFound, RunFormatError: as `RunFile.read`.
        UsageError: the run has no such attempt.
    """

    def __init__(self, run: str | Path, *, attempt: int | None = None) -> None:
        self.run_file = RunFile.read(Path(run))
        self.run = Path(run).absolute()  # its views must outlive a change of the working folder
        self.attempt = attempt
        self._check_attempt()
        self._lock = threading.RLock()
        self._connection = duckdb.connect(":memory:")
        for setting in (
            "enable_progress_bar = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
        ):
            self._connection.execute(f"SET {setting}")
        self._connection.execute("CREATE SCHEMA every")
        self._files = TraceFiles(self.run, self._connection)
        self._left = LeftBehind(self.run, self._connection)
        self._views: dict[str, list[str]] = {}  # the statements that made those of a table
        self._ready: set[str] = set()  # tables whose views show what was listed last
        self._closed = False
        self.refresh()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the seals."""
        self._closed = True
        self._connection.close()

    @property
    def damaged(self) -> dict[Path, str]:
        """Files that could not be read, with the reason; their rows are missing.

        All tables are looked through for it. A segment is read whole; a seal is opened, and
        damage of a block of it is found when a query meets it.
        """
        if not self._closed:
            self._prepare(TABLES)
        return dict(self._files.damaged)

    def losses(self) -> list[Trouble]:
        """The findings about files alone, of the tables that were asked for so far."""
        tables = sorted(self._ready)
        return self._look(lambda: file_troubles(self._files, tables), tables)

    def troubles(self) -> list[Trouble]:
        """What is wrong with the record: files damaged or missing, steps twice, back, or absent.

        Returns:
            one finding per kind, table, attempt and rank, with counts.
        """
        tables = tuple(TABLES)
        return self._look(
            lambda: [
                *file_troubles(self._files, tables),
                *step_troubles(self.rows, self._files),
            ],
            tables,
        )

    def writers(self, table: str = "steps") -> dict[int, list[Part]]:
        """Which processes wrote the rows of a table, by rank: an entry per writer and attempt.

        What was written before writers were recorded has the writer None.
        """
        return self._look(
            lambda: {
                rank: joined(part for parts in found.values() for part in parts or ())
                for rank in self._files.ranks(table)
                for found in [self._files.contents(table, rank)]
            },
            (table,),
        )

    def of_writer(self, writer: str, table: str = "steps") -> pa.Table:
        """All rows that one writer wrote, also where another recorded the same steps.

        Args:
            writer: a name from `writers`.
            table: the table.
        """

        def look() -> pa.Table:
            sources = [*self._files.sources(table, writer=writer), _no_rows(table)]
            return self.arrow(f"SELECT * FROM ({' UNION ALL BY NAME '.join(sources)})")

        return self._look(look, (table,))

    def refresh(self) -> None:
        """See what was published since the reader was made, all tables at once."""
        with self._lock:
            self.run_file = RunFile.read(self.run)
            self._left.look({layer.id: layer.numel for layer in self.run_file.layers})
            self._files.list_all()
            self._ready.clear()
            cursor = self._connection.cursor()
            cursor.begin()
            for name, content in self._described().items():
                cursor.register("described", content)
                cursor.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM described")
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

        found: list[Any] = self._answer(query, fetch)
        return found

    def arrow(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of a query as an Arrow table.

        Raises:
            UsageError: the SQL is wrong, or it has no result; the message is DuckDB's.
        """
        values = dict(parameters or {})

        def fetch(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
            return _result(cursor.sql(query, params=values), query).to_arrow_table()

        return self._answer(query, fetch)

    def pandas(self, query: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The result of a query as a pandas DataFrame.

        Raises:
            UsageError: as `arrow`, and where pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise UsageError(
                "pandas is not installed", next_step="pip install pandas, or use RunReader.arrow"
            )
        return self.arrow(query, parameters).to_pandas()

    def attach(self, name: str, other: RunReader) -> None:
        """Bring the tables of `other` into this reader as the schema `name`, for comparisons."""
        with self._lock:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
            for table in (*TABLES, *self._described()):
                content = other.arrow(f"SELECT * FROM {table}")  # noqa: F841 - because DuckDB reads it by its name
                self._connection.execute(
                    f"CREATE OR REPLACE TABLE {name}.{table} AS SELECT * FROM content"
                )

    def _answer(self, query: str, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        tables = _named_in(query)
        # first remedy: a file was folded into a seal after it was listed
        remedies: list[Callable[[], None]] = [self.refresh, partial(self._look_for_damage, tables)]
        while True:
            self._prepare(tables)
            try:
                # a cursor per call: a connection shared by threads loses results without an error
                return fetch(self._connection.cursor())
            except duckdb.Error as error:
                message = str(error).splitlines()[0]
                # a seal may be released between the moment its view is read and the query begins
                own = isinstance(error, _ERRORS_OF_THE_QUERY) and not SEAL_NAME.search(message)
                if own or not remedies:
                    raise UsageError(f"the query failed: {message}") from None
            remedies.pop(0)()

    def _look(self, look: Callable[[], _T], tables: Collection[str] = ()) -> _T:
        """Look at the files of these tables, again where one was folded meanwhile."""
        with self._lock:
            for _ in range(_LISTINGS):
                self._prepare(tables)
                try:
                    return look()
                except FileVanishedError:
                    self.refresh()
        raise self._vanishing()

    def _prepare(self, tables: Collection[str]) -> None:
        """Make the views of these tables, unless they show already what was listed last."""
        if self._ready.issuperset(tables):
            return
        with self._lock:
            for _ in range(_LISTINGS):
                try:
                    for table in tables:
                        if table not in self._ready:
                            self._make_views(table)
                    return
                except FileVanishedError:
                    self.refresh()
                except duckdb.Error:  # a file is gone since it was listed, or damaged inside
                    self._look_for_damage(tables)
        raise self._vanishing()

    def _vanishing(self) -> UsageError:
        return UsageError(
            "the files of the trace vanish while they are read",
            where=str(self.run / "trace"),
            next_step="see who deletes them; try again",
        )

    def _make_views(self, table: str) -> None:
        def published(rank: int) -> list[str]:
            return self._files.sources(table, rank=rank)

        sources = [
            *self._files.sources(table),
            *self._left.sources(table, published),
            _no_rows(table),
        ]
        statements = [
            f"CREATE OR REPLACE VIEW every.{table} AS {' UNION ALL BY NAME '.join(sources)}",
            f"CREATE OR REPLACE VIEW {table} AS"
            f" SELECT * FROM every.{table} WHERE {self._condition()}",
        ]
        if table == "layers":
            statements += [f"CREATE OR REPLACE VIEW {name} AS {sql}" for name, sql in VIEWS.items()]
        if self._views.get(table) != statements:
            cursor = self._connection.cursor()
            cursor.begin()
            for statement in statements:
                cursor.execute(statement)
            cursor.commit()
            cursor.close()
            self._views[table] = statements
            self._files.release(table)
        self._ready.add(table)

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

    def _look_for_damage(self, tables: Collection[str]) -> None:
        """Read every file of these tables whole, leave out those that fail, and refresh."""
        with self._lock:
            for table in tables:
                self._files.read_whole(table)
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


def _named_in(query: str) -> Collection[str]:
    """The tables that a query may read: those that it names, or all if it names none of ours."""
    words = {word.lower() for word in _WORDS.findall(query)}
    if words.isdisjoint({*TABLES, *VIEWS, "layer_names", "attempts"}):
        return tuple(TABLES)
    return tuple(
        table
        for table in TABLES
        if table in words or (table == "layers" and not words.isdisjoint(VIEWS))
    )
