"""Reading a run from a lake, by the same tables and views as from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from ..errors import RunFormatError, RunNotFound, UsageError
from ..store.run_file import RunFile
from ..store.schema import TABLES
from ..store.trace_reader import ERRORS_OF_THE_QUERY, TraceReader
from ..store.troubles import Trouble
from .connection import NAME, connect, reason, text, unavailable
from .location import Lake
from .tables import newest_description, present


class LakeReader(TraceReader):
    """A run's tables by SQL, from a lake; safe to use from several threads.

    What it shows is one snapshot of the lake, the newest at the last `refresh`.

    Args:
        catalog: as DuckLake takes it after "ducklake:"; the prefix may be there.
        data: folder or URL of the lake's data; None for what the catalog says.
        run: the run's identity, or its name if no other run in the lake has it; None if the lake
            holds one run alone.
        attempt: read the run as it was during this attempt; the newest by default.

    Attributes:
        run: a path that names the lake and the run, and does not exist.
        identity: the run's identity in the lake.
        run_file: names, layers and attempts of the run.

    Raises:
        LakeUnavailable: the catalog or the data cannot be reached.
        RunNotFound: the lake has no such run.
        RunFormatError: its description is of a newer format.
        UsageError: the run has no such attempt; several runs have this name; an extension of
            DuckDB is missing.
    """

    def __init__(
        self, catalog: str, data: str | None, run: str | None, *, attempt: int | None = None
    ) -> None:
        self._lake = Lake.of(catalog, data)
        connection = connect(self._lake, read_only=True)
        try:
            self._snapshot = _newest_snapshot(connection)
            self.identity = self._chosen(connection, run)
            self.run = Path(f"{self._lake}?run={self.identity}")
            super().__init__(self._described_run(connection), attempt, connection)
            self.refresh()
        except duckdb.Error as error:
            connection.close()
            raise unavailable(self._lake, error) from None
        except Exception:  # whatever it is: the connection must not be kept; it is raised on
            connection.close()
            raise

    def refresh(self) -> None:
        """See what was committed since the reader was made, all tables at once.

        Raises:
            LakeUnavailable: the catalog cannot be reached.
            RunFormatError: the run's description is of a newer format by now.
        """
        with self._lock:
            try:
                self._refresh()
            except duckdb.Error as error:
                raise unavailable(self._lake, error) from None

    def _refresh(self) -> None:
        cursor = self._connection.cursor()
        self._snapshot = _newest_snapshot(cursor)
        self.run_file = self._described_run(cursor)
        there = present(cursor)
        cursor.close()
        self._describe()
        for table in TABLES:
            self._execute(self._statements(table, [self._source(table)] if table in there else []))

    def _answer(self, query: str, fetch: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        refreshed = False
        while True:
            try:
                # a cursor per call: a connection shared by threads loses results without an error
                return fetch(self._connection.cursor())
            except duckdb.Error as error:
                if isinstance(error, ERRORS_OF_THE_QUERY):
                    raise UsageError(f"the query failed: {reason(error)}", where=query) from None
                if refreshed:
                    raise unavailable(self._lake, error) from None
            self.refresh()  # its snapshot may have been deleted
            refreshed = True

    @property
    def damaged(self) -> dict[Path, str]:
        """Always empty: what was damaged was not uploaded."""
        return {}

    def losses(self) -> list[Trouble]:
        """Always empty, likewise."""
        return []

    def newest_snapshot(self) -> int:
        """The number of the lake's newest snapshot, which `refresh` would show.

        Raises:
            LakeUnavailable: the catalog cannot be reached.
        """
        try:
            return _newest_snapshot(self._connection.cursor())
        except duckdb.Error as error:
            raise unavailable(self._lake, error) from None

    def _source(self, table: str) -> str:
        rows = f"SELECT * EXCLUDE (run, segment) FROM {self._at(table)}"
        return f"{rows} WHERE run = {text(self.identity)}"

    def _at(self, table: str) -> str:
        return f"{NAME}.{table} AT (VERSION => {self._snapshot})"

    def _chosen(self, connection: duckdb.DuckDBPyConnection, run: str | None) -> str:
        if "runs" not in present(connection):
            found = []
        else:
            found = connection.execute(
                f"SELECT DISTINCT run, name FROM {self._at('runs')} ORDER BY run"
            ).fetchall()
        wanted = [row for row in found if run in (None, *row)]
        exact = [row for row in found if row[0] == run]
        names = ", ".join(row[0] for row in found[:10]) or "none"
        if len(exact or wanted) == 1:
            return str((exact or wanted)[0][0])
        if wanted:
            what = "several runs in the lake; which one?"
            raise UsageError(what, where=str(self._lake), next_step=f"run= one of {names}")
        raise RunNotFound(
            "no run in this lake" if run is None else f"no run {run} in this lake",
            where=str(self._lake),
            next_step=f"it has {names}; sdc-guard upload commits one",
        )

    def _described_run(self, connection: duckdb.DuckDBPyConnection) -> RunFile:
        found = newest_description(connection, self._at("runs"), self.identity)
        try:
            return RunFile.of_text(found or "")
        except (ValueError, KeyError, TypeError) as error:
            raise RunFormatError(
                f"the description of run {self.identity} cannot be read ({error})",
                where=str(self._lake),
                next_step="upload it again from the run's folder",
            ) from None


def _newest_snapshot(connection: duckdb.DuckDBPyConnection) -> int:
    found = connection.execute(f"FROM ducklake_current_snapshot('{NAME}')").fetchall()
    return int(found[0][0])
