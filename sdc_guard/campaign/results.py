"""A campaign's DuckDB file: one writer, a transaction per finished run or trial.

What a process had finished before it was killed is there; the rest is done again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import duckdb

from ..errors import UsageError
from .plan import Clean
from .rows import Row, Rows, as_arrow
from .tables import CREATE, TABLES, VERSION

FILE: Final = "campaign.duckdb"

_STATES: Final = """
    SELECT step, state FROM clean_steps WHERE (purpose, model, seed) = (?, ?, ?) ORDER BY step
"""
_FINISHED: Final = "SELECT purpose, model, seed, steps FROM clean_runs"
_NAMED: Final = "SELECT model, layer FROM layers"


class Results:
    """The file, open for writing.

    Args:
        path: the file; made if missing.
        plan: text of the plan; another one in the same file is refused.
        environment: what a new file keeps of where it was begun.

    Raises:
        UsageError: the file is no campaign's, another plan's, in use, or cannot be written.
    """

    def __init__(self, path: Path, plan: str, environment: Mapping[str, str]) -> None:
        self.path = path
        _make_folder(path.parent)
        new = not path.exists()
        self._connection = _open(path)
        try:
            if new or not self._tables():
                self._create(plan, environment)
            else:
                self._check(plan)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; others can read it then."""
        self._connection.close()

    def rows(self, query: str, parameters: Collection[Any] = ()) -> list[Any]:
        """The rows of a query, as tuples."""
        return self._connection.execute(query, list(parameters)).fetchall()

    def trials(self) -> set[int]:
        """Numbers of the trials that are finished, failed ones included."""
        return {number for (number,) in self.rows("SELECT trial FROM trials")}

    def clean_runs(self) -> set[Clean]:
        """The clean runs that are finished."""
        return {Clean(*row) for row in self.rows(_FINISHED)}

    def add(self, rows: Rows, timing: Row) -> None:
        """Add the rows of one finished run or trial, all or none.

        Raises:
            UsageError: the disk is full, or the file cannot be written.
        """
        self._connection.begin()
        try:
            self._insert("timing", [timing])
            for table, content in rows.items():
                self._insert(table, self._unnamed(content) if table == "layers" else content)
            self._connection.commit()
        except BaseException as error:
            with suppress(duckdb.Error):  # a commit that failed has ended it
                self._connection.rollback()
            if isinstance(error, duckdb.Error):
                raise _of_duckdb(error, self.path, "free some space, then start again") from None
            raise

    def add_twin(self, run: Clean, rows: Rows, timing: Row) -> None:
        """Add the rows of a twin, or compare them with those that are there.

        Raises:
            UsageError: this machine does not train as the one that began the file did.
        """
        there = self.rows(_STATES, (run.purpose, run.model, run.seed))
        here = [(row["step"], row["state"]) for row in rows["clean_steps"]]
        if not there:
            self.add(rows, timing)
        elif there != here:
            step = next(ours[0] for ours, theirs in zip(here, there, strict=True) if ours != theirs)
            raise UsageError(
                f"the model {run.model} trains to other bits here than where the file was begun"
                f" (seed {run.seed}, step {step})",
                where=str(self.path),
                next_step="go on there, or begin a new file",
            )

    def _insert(self, table: str, rows: list[Row]) -> None:
        if rows:
            self._connection.register("added", as_arrow(table, rows))
            self._connection.execute(f"INSERT INTO {table} SELECT * FROM added")
            self._connection.unregister("added")

    def _unnamed(self, rows: list[Row]) -> list[Row]:
        """Rows of layers that are not in the file yet; without digests a run names no buffers."""
        named = set(self.rows(_NAMED))
        return [row for row in rows if (row["model"], row["layer"]) not in named]

    def _create(self, plan: str, environment: Mapping[str, str]) -> None:
        self._connection.begin()
        for statement in CREATE:
            self._connection.execute(statement)
        self._insert("plan", [{"version": VERSION, "content": plan}])
        pairs = [{"name": name, "value": value} for name, value in environment.items()]
        self._insert("environment", pairs)
        self._connection.commit()

    def _check(self, plan: str) -> None:
        if not set(TABLES) <= self._tables():
            raise UsageError(
                "this is no campaign's file", where=str(self.path), next_step="give another path"
            )
        if self.rows("SELECT version, content FROM plan") != [(VERSION, plan)]:
            raise UsageError(
                "this file holds a campaign of another plan (seed, model, mix, length or version)",
                where=str(self.path),
                next_step="give the options that it was begun with, or another path",
            )

    def _tables(self) -> set[str]:
        return {name for (name,) in self.rows("SELECT table_name FROM duckdb_tables()")}


def file_of(path: Path) -> Path:
    """The file of a campaign that was asked for as a file or as a folder."""
    if path.is_dir() or not (path.suffix or path.is_file()):
        return path / FILE
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(
            "a file, not a folder", where=str(folder), next_step="give another path"
        ) from None


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        connection = duckdb.connect(str(path))
    except duckdb.Error as error:
        in_use = "set lock on file" in str(error)  # in DuckDB's words, which has no class for it
        advice = "wait for who uses it, or give another path" if in_use else "give another path"
        raise _of_duckdb(error, path, advice) from None
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET threads = 1")  # the trials need the cores
    return connection


def _of_duckdb(error: duckdb.Error, path: Path, next_step: str) -> UsageError:
    lines = str(error).splitlines()
    return UsageError(
        f"DuckDB: {lines[0] if lines else error}", where=str(path), next_step=next_step
    )
