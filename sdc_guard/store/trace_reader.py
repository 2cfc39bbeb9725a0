"""A run's tables by SQL, wherever the run lies.

The tables come by their own names and hold the run as it is now: where a resume repeated steps,
only the newest attempt's. The schema `every` holds the rows of all attempts. Beside the tables
there are `layer_names` and `attempts` from run.json, and the views of `whole` over all ranks.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from ..errors import UsageError
from .lineage import LAST_STEP, lineage
from .run_file import RunFile
from .schema import DUCKDB_TYPES, TABLES
from .troubles import Trouble
from .whole import VIEWS

_T = TypeVar("_T")

ERRORS_OF_THE_QUERY = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConnectionException,
)


class TraceReader(ABC):
    """A run's tables by SQL; safe to use from several threads.

    Attributes:
        run: the run's folder, or a path that names the run and does not exist.
        run_file: names, layers and attempts of the run.
        attempt: the attempt as of which it is read; None for the newest.
    """

    run: Path

    def __init__(
        self, run_file: RunFile, attempt: int | None, connection: duckdb.DuckDBPyConnection
    ) -> None:
        self.run_file = run_file
        self.attempt = attempt
        self._check_attempt()
        self._lock = threading.RLock()
        self._connection = connection
        self._connection.execute("CREATE SCHEMA every")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is attached."""
        self._connection.close()

    @property
    @abstractmethod
    def damaged(self) -> dict[Path, str]:
        """Files that could not be read, with the reason; their rows are missing."""

    @abstractmethod
    def losses(self) -> list[Trouble]:
        """What of the record is missing or damaged, of the tables asked for so far."""

    @abstractmethod
    def refresh(self) -> None:
        """See what was published since the reader was made, all tables at once."""

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

    def attach(self, name: str, other: TraceReader) -> None:
        """Bring the tables of `other` into this reader as the schema `name`, for comparisons."""
        with self._lock:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
            for table in (*TABLES, *self._described()):
                content = other.arrow(f"SELECT * FROM {table}")  # noqa: F841 - because DuckDB reads it by its name
                self._connection.execute(
                    f"CREATE OR REPLACE TABLE {name}.{table} AS SELECT * FROM content"
                )

    @abstractmethod
    def _answer(self, query: str, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        """What `fetch` makes of a cursor of its own, with the views that `query` names."""

    def _describe(self) -> None:
        """Make the tables that come from run.json anew."""
        cursor = self._connection.cursor()
        cursor.begin()
        for name, content in self._described().items():
            cursor.register("described", content)
            cursor.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM described")
        cursor.commit()
        cursor.close()

    def _statements(self, table: str, sources: Sequence[str]) -> list[str]:
        """What makes the views of a table whose rows these SELECTs have."""
        rows = " UNION ALL BY NAME ".join([*sources, no_rows(table)])
        statements = [
            f"CREATE OR REPLACE VIEW every.{table} AS {rows}",
            f"CREATE OR REPLACE VIEW {table} AS"
            f" SELECT * FROM every.{table} WHERE {self._condition()}",
        ]
        if table == "layers":
            statements += [f"CREATE OR REPLACE VIEW {name} AS {sql}" for name, sql in VIEWS.items()]
        return statements

    def _execute(self, statements: Iterable[str]) -> None:
        """All of them at once."""
        cursor = self._connection.cursor()
        cursor.begin()
        for statement in statements:
            cursor.execute(statement)
        cursor.commit()
        cursor.close()

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
        layers, attempts = self.run_file.named, self.run_file.attempts
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


def in_memory() -> duckdb.DuckDBPyConnection:
    """A connection that prints nothing and fetches nothing by itself."""
    connection = duckdb.connect(":memory:")
    for setting in (
        "enable_progress_bar = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
    ):
        connection.execute(f"SET {setting}")
    return connection


def _result(result: _T | None, query: str) -> _T:
    if result is None:
        raise UsageError("the query has no result; give a SELECT", where=query)
    return result


def no_rows(table: str) -> str:
    """A SELECT of no rows with every column of `table` and the rank."""
    columns = ", ".join(
        f"NULL::{DUCKDB_TYPES[column.type]} AS {column.name}" for column in TABLES[table]
    )
    return f"SELECT {columns}, NULL::INTEGER AS rank WHERE false"
