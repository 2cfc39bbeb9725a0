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
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..errors import UsageError
from .contents import Part, joined
from .left_behind import LeftBehind
from .lineage import lineage
from .run_file import RunFile
from .schema import TABLES
from .sources import SEAL_NAME, FileVanishedError, TraceFiles
from .trace_reader import ERRORS_OF_THE_QUERY, TraceReader, in_memory, no_rows
from .troubles import Trouble, file_troubles, step_troubles
from .whole import VIEWS

__all__ = ["RunReader", "Trouble", "lineage"]

_T = TypeVar("_T")

_LISTINGS = 20  # of files that are folded while they are looked at, before one counts as missing
_WORDS = re.compile(r"\w+")


class RunReader(TraceReader):
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
        run_file = RunFile.read(Path(run))
        self.run = Path(run).absolute()  # its views must outlive a change of the working folder
        super().__init__(run_file, attempt, in_memory())
        self._files = TraceFiles(self.run, self._connection)
        self._left = LeftBehind(self.run, self._connection)
        self._views: dict[str, list[str]] = {}  # the statements that made those of a table
        self._ready: set[str] = set()  # tables whose views show what was listed last
        self._closed = False
        self.refresh()

    def close(self) -> None:
        """Release the seals."""
        self._closed = True
        super().close()

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
            sources = [*self._files.sources(table, writer=writer), no_rows(table)]
            return self.arrow(f"SELECT * FROM ({' UNION ALL BY NAME '.join(sources)})")

        return self._look(look, (table,))

    def refresh(self) -> None:
        """See what was published since the reader was made, all tables at once."""
        with self._lock:
            self.run_file = RunFile.read(self.run)
            numel = {layer.id: layer.numel for layer in self.run_file.layers}
            self._left.look(numel, self.run_file.first_steps)
            self._files.list_all()
            self._ready.clear()
            self._describe()

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
                own = isinstance(error, ERRORS_OF_THE_QUERY) and not SEAL_NAME.search(message)
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
        sources = [
            *self._files.sources(table),
            *self._left.sources(table, self._files),
        ]
        statements = self._statements(table, sources)
        if self._views.get(table) != statements:
            self._execute(statements)
            self._views[table] = statements
            self._files.release(table)
        self._ready.add(table)

    def _look_for_damage(self, tables: Collection[str]) -> None:
        """Read every file of these tables whole, leave out those that fail, and refresh."""
        with self._lock:
            for table in tables:
                self._files.read_whole(table)
            self.refresh()


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
