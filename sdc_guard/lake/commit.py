"""One transaction: the rows of some pieces, and the record that they are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from ..store.run_file import RunFile
from .connection import NAME
from .identity import run_id
from .loading import Loaded
from .pending import Stream
from .sealed import Record, insert_seals
from .spans import Spans
from .tables import turns


@dataclass
class Committed:
    """What a transaction did.

    Attributes:
        known: the ranges that it wrote or met, by table and rank.
        records: how many ranges it wrote.
        rows: how many rows it wrote.
        inconsistent: seals that do not fit what is in the lake, with the reason.
    """

    known: dict[Stream, list[tuple[int, int]]] = field(default_factory=dict)
    records: int = 0
    rows: int = 0
    inconsistent: dict[Path, str] = field(default_factory=dict)


def commit(
    connection: duckdb.DuckDBPyConnection,
    run_file: RunFile,
    loaded: Sequence[Loaded],
    *,
    describe: bool,
) -> Committed:
    """Commit what is not there already, all of it or nothing; no transaction for nothing.

    Args:
        connection: to the lake; not within a transaction.
        run_file: of the run.
        loaded: its pieces.
        describe: whether the content of run.json may be new to the lake, too.

    Raises:
        duckdb.TransactionException: another uploader committed pieces of the same ranks.
        duckdb.Error: whatever else the catalog or the data refuses.
    """
    run = run_id(run_file)
    ranks = {item.piece.rank for item in loaded} | ({0} if describe else set())
    connection.begin()
    try:
        for table in turns(run, ranks):  # first: from here on nobody else commits these ranks
            connection.execute(f"UPDATE {NAME}.{table} SET turn = turn + 1")
        described = describe and _describe(connection, run, run_file)
        there = _records(connection, run, loaded)
        done = Committed({stream: [r[2:4] for r in found] for stream, found in there.items()})
        written = [
            *_segments(connection, run, loaded, there),
            *insert_seals(connection, run, loaded, there, done.inconsistent),
        ]
        if written or described:
            _note(connection, run, written)
            connection.commit()
        else:  # others were faster: no snapshot for that
            connection.rollback()
    except BaseException:
        _roll_back(connection)
        raise
    for table, rank, first, last, _, rows in written:
        done.known.setdefault((table, rank), []).append((first, last))
        done.records += 1
        done.rows += rows
    return done


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.rollback()
    except duckdb.Error:  # a commit that failed has rolled back already
        return


def _describe(connection: duckdb.DuckDBPyConnection, run: str, run_file: RunFile) -> bool:
    """Add the content of run.json; False if it is there."""
    text = run_file.to_text()
    found = connection.execute(
        f"SELECT count(*) FROM {NAME}.runs WHERE run = ? AND content = ?", [run, text]
    ).fetchall()
    if found[0][0]:
        return False
    sizes = [len(run_file.attempts), len(run_file.layers)]
    connection.execute(
        f"INSERT INTO {NAME}.runs BY NAME SELECT ? AS run, ? AS name, ? AS attempts,"
        " ? AS layers, ? AS content, ? AS uploaded",
        [run, run_file.name, *sizes, text, time.time()],
    )
    return True


def _records(
    connection: duckdb.DuckDBPyConnection, run: str, loaded: Iterable[Loaded]
) -> dict[Stream, list[Record]]:
    """What the lake holds of the numbers of these pieces, by table and rank."""
    lowest: dict[Stream, int] = {}
    for item in loaded:
        stream = item.piece.stream
        lowest[stream] = min(item.piece.first, lowest.get(stream, item.piece.first))
    found: dict[Stream, list[Record]] = {}
    if not lowest:
        return found
    of_interest = " OR ".join(
        f"(table_name = '{table}' AND rank = {rank} AND last >= {first})"
        for (table, rank), first in lowest.items()
    )
    for record in connection.execute(
        f"SELECT table_name, rank, first, last, crc, rows FROM {NAME}.uploaded"
        f" WHERE run = ? AND ({of_interest})",
        [run],
    ).fetchall():
        found.setdefault(record[:2], []).append(record)
    return found


def _segments(
    connection: duckdb.DuckDBPyConnection,
    run: str,
    loaded: Iterable[Loaded],
    there: dict[Stream, list[Record]],
) -> list[Record]:
    known = {stream: Spans(r[2:4] for r in found) for stream, found in there.items()}
    parts: dict[str, list[pa.Table]] = {}
    written: list[Record] = []
    for item in loaded:
        piece = item.piece
        if item.rows is None or piece.first in known.get(piece.stream, Spans()):
            continue
        count = item.rows.num_rows
        own = {
            "rank": pa.repeat(pa.scalar(piece.rank, pa.int32()), count),
            "run": pa.repeat(pa.scalar(run), count),
            "segment": pa.repeat(pa.scalar(piece.first, pa.int64()), count),
        }
        rows = item.rows
        for name, column in own.items():
            rows = rows.append_column(name, column)
        parts.setdefault(piece.table, []).append(rows)
        written.append((piece.table, piece.rank, piece.first, piece.last, item.crc, count))
    for table, tables in parts.items():
        # by name: a segment of an older version may lack a column
        connection.register("segments", pa.concat_tables(tables, promote_options="default"))
        connection.execute(f"INSERT INTO {NAME}.{table} BY NAME SELECT * FROM segments")
        connection.unregister("segments")
    return written


def _note(connection: duckdb.DuckDBPyConnection, run: str, written: Sequence[Record]) -> None:
    if not written:
        return
    names = ("table_name", "rank", "first", "last", "crc", "rows", "run", "uploaded")
    now = time.time()
    records = pa.Table.from_pylist(
        [dict(zip(names, (*record, run, now), strict=True)) for record in written]
    )
    connection.register("records", records)
    connection.execute(f"INSERT INTO {NAME}.uploaded BY NAME SELECT * FROM records")
    connection.unregister("records")
