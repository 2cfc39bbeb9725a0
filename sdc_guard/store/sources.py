"""The files of a trace as SQL: which of them have to be read, and which can be trusted.

Listing costs a look into each folder. Attaching a seal and checking a segment's checksum cost a
read of the file and wait until its table is asked for; each file is checked once.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb

from .contents import Part, parts_of_segment
from .refusal import reason
from .schema import TABLES
from .seal_file import WRITER_COLUMN, columns_of, contents_of, is_table
from .segment_file import Segment, open_segment
from .segments import Listing, Span, listing, quoted, rank_folder, rank_of, text
from .segments import ranks as ranks_of

SEAL_NAME = re.compile(r"\bseal_\d+\b")  # of an attached seal
_BY_NAME = "hive_partitioning = true, hive_types = {'rank': INTEGER}"
_BY_LIST = "hive_partitioning = false"
_OTHER_FILES = 256  # that a process may have open beside the seals


class FileVanishedError(Exception):
    """A listed file is gone: it was folded into a seal since, and has to be listed again."""


@dataclass(frozen=True)
class _Seal:
    name: str  # under which it is attached
    columns: tuple[str, ...]
    names_writers: bool


class TraceFiles:
    """The files of one run's trace; not safe to use from several threads at once.

    Args:
        run: the run's folder.
        connection: where seals are attached.

    Attributes:
        damaged: files that could not be read, with the reason.
    """

    def __init__(self, run: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self.damaged: dict[Path, str] = {}
        self._run = run
        self._connection = connection
        # a folder above such as "step=500" would stand in for the rows' own column
        self._path_names_more = any("=" in part for part in run.parts)
        self._listings: dict[str, dict[int, Listing]] = {}
        self._seals: dict[Path, _Seal] = {}
        self._seals_ever = 0
        # with their columns: a resume may have been recorded by a version that knows more of them
        self._segments: dict[Path, tuple[str, ...]] = {}

    def list_all(
        self, tables: Iterable[str] = tuple(TABLES), ranks: Iterable[int] | None = None
    ) -> None:
        """See what was published since, of all tables and ranks at once, or of these."""
        self._listings = {
            table: {
                rank: listing(rank_folder(self._run, table, rank))
                for rank in (ranks_of(self._run, table) if ranks is None else ranks)
            }
            for table in tables
        }

    def sources(
        self, table: str, *, writer: str | None = None, rank: int | None = None
    ) -> list[str]:
        """A SELECT for each file or set of files of `table`, with their rank.

        Args:
            table: the table.
            writer: of the rows of this writer alone.
            rank: of this rank alone.

        The segments of all ranks are one call of read_parquet, with the rank from the folder's
        name: by it DuckDB passes over the files of ranks that a query does not want. A call for
        each of a thousand ranks takes twice as long.

        Raises:
            FileVanishedError: a listed file is gone.
        """
        found: list[str] = []
        unsealed: list[Path] = []
        for number in self._listings[table]:
            if rank not in (None, number):
                continue
            live = self.live(table, number).values()
            segments = [path for path in live if path in self._segments]
            if writer is not None:
                segments = [p for p in segments if _opened(p).writer == writer]
            found += self._sealed([p for p in live if p in self._seals], table, number, writer)
            unsealed += segments
        return found + self._unsealed(unsealed)

    def ranks(self, table: str) -> list[int]:
        """The ranks that have files of `table`."""
        return list(self._listings[table])

    def listing(self, table: str, rank: int) -> Listing:
        """All files of a table and rank, the damaged ones too."""
        return self._listings[table][rank]

    def live(self, table: str, rank: int) -> dict[Span, Path]:
        """The sound files that together hold every row once.

        A damaged seal hides nothing: what it covers may still be there.

        Raises:
            FileVanishedError: a listed file is gone.
        """
        found = self._listings[table][rank]
        sound = Listing(dict(found.segments), dict(found.seals))
        while True:
            live = sound.live()
            bad = [span for span, path in live.items() if not self._is_sound(path, table)]
            if not bad:
                return live
            for first, last in bad:
                if live[first, last].suffix == ".duckdb":
                    del sound.seals[first, last]
                else:
                    del sound.segments[first]

    def parts(self, span: Span, path: Path) -> list[Part] | None:
        """What a live file holds; None where that was not recorded.

        Raises:
            FileVanishedError: it is gone.
        """
        if path in self._seals:
            try:
                found = contents_of(self._connection, self._seals[path].name)
            except duckdb.Error:
                return None
            return None if found is None else found[1]
        return parts_of_segment(_opened(path), span[0])

    def contents(self, table: str, rank: int) -> dict[Span, list[Part] | None]:
        """`parts` of all live files of a table and rank."""
        return {span: self.parts(span, path) for span, path in self.live(table, rank).items()}

    def release(self, table: str) -> None:
        """Detach the seals of `table` that wider ones have replaced."""
        live = {path for rank in self._listings[table] for path in self.live(table, rank).values()}
        for path in [p for p in self._seals if _table_of(p) == table and p not in live]:
            self._detach(path)

    def read_whole(self, table: str) -> None:
        """Read every file of `table` whole, so that damage of any block is found."""
        for path in [p for p in self._segments if _table_of(p) == table]:
            del self._segments[path]
        for path in [p for p in self._seals if _table_of(p) == table]:
            try:
                self._connection.cursor().execute(
                    f"SELECT bit_xor(hash(t)) FROM {self._seals[path].name}.{table} AS t"
                ).fetchall()
            except duckdb.Error as error:
                self.damaged[path] = reason(error)
                self._detach(path)

    def _is_sound(self, path: Path, table: str) -> bool:
        if path in self.damaged:
            return False
        if path in self._seals or path in self._segments:
            return True
        return self._attach(path, table) if path.suffix == ".duckdb" else self._check(path)

    def _check(self, path: Path) -> bool:
        segment = _opened(path)
        if segment.damage is not None:
            self.damaged[path] = segment.damage
            return False
        self._segments[path] = segment.columns
        return True

    def _attach(self, path: Path, table: str) -> bool:
        name = f"seal_{self._seals_ever}"
        self._seals_ever += 1
        _allow_files(len(self._seals) + _OTHER_FILES)
        try:
            self._connection.execute(f"ATTACH {text(path)} AS {name} (READ_ONLY)")
            columns = columns_of(self._connection, name, table)
            if not is_table(columns, table):
                raise duckdb.CatalogException(f"it holds no table {table} of a trace")
            self._connection.execute(f"SELECT * FROM {name}.{table} LIMIT 0")
        except duckdb.Error as error:
            self._connection.execute(f"DETACH DATABASE IF EXISTS {name}")
            if not os.path.lexists(path):
                raise FileVanishedError from None
            self.damaged[path] = reason(error)
            return False
        own = tuple(column for column in columns if column in TABLES[table].names)
        self._seals[path] = _Seal(name, own, WRITER_COLUMN in columns)
        return True

    def _detach(self, path: Path) -> None:
        self._connection.execute(f"DETACH {self._seals.pop(path).name}")

    def _sealed(self, paths: list[Path], table: str, rank: int, writer: str | None) -> list[str]:
        condition = "" if writer is None else f" WHERE {WRITER_COLUMN} = {text(writer)}"
        seals = [self._seals[path] for path in paths]
        return [
            f"SELECT {', '.join(seal.columns)}, {rank} AS rank FROM {seal.name}.{table}{condition}"
            for seal in seals
            if writer is None or seal.names_writers
        ]

    def _unsealed(self, paths: list[Path]) -> list[str]:
        alike: dict[tuple[tuple[str, ...], int | None], list[str]] = {}
        for path in paths:
            rank = rank_of(path) if self._path_names_more else None
            alike.setdefault((self._segments[path], rank), []).append(quoted(path))
        return [
            f"SELECT {', '.join(columns)}, {'rank' if rank is None else rank} AS rank"
            f" FROM read_parquet([{', '.join(files)}], {_BY_NAME if rank is None else _BY_LIST})"
            for (columns, rank), files in alike.items()
        ]


def _opened(path: Path) -> Segment:
    try:
        return open_segment(path)
    except FileNotFoundError:
        raise FileVanishedError from None


def _table_of(path: Path) -> str:
    return path.parent.parent.name


def _allow_files(count: int) -> None:
    """Let this process open so many files, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and count > soft:
        most = 2 * count if hard == resource.RLIM_INFINITY else min(2 * count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
