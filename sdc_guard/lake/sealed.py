"""What lies only in seals: the rows of many segments, without a sign which came from which."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb

from .connection import NAME, text
from .loading import Loaded
from .pending import Stream
from .spans import Spans

Record = tuple[str, int, int, int, int | None, int]  # table, rank, first, last, crc, rows


def insert_seals(
    connection: duckdb.DuckDBPyConnection,
    run: str,
    loaded: Iterable[Loaded],
    there: dict[Stream, list[Record]],
    inconsistent: dict[Path, str],
) -> list[Record]:
    """Insert what the lake lacks of the seals among `loaded`.

    Args:
        connection: to the lake, within a transaction.
        run: the run's identity.
        loaded: pieces; segments are passed over.
        there: what the lake holds of their numbers, by table and rank.
        inconsistent: takes the seals that do not fit what is in the lake, with the reason.

    Returns:
        what was inserted. Which of the missing numbers a row came from is not known any more:
        the first range of them stands for all, the others have no rows.
    """
    written: list[Record] = []
    for item in loaded:
        piece = item.piece
        if piece.kind == "segment":
            continue
        inside = [
            record
            for record in there.get(piece.stream, [])
            if record[2] <= piece.last and record[3] >= piece.first
        ]
        if any(first < piece.first or last > piece.last for _, _, first, last, _, _ in inside):
            inconsistent[piece.path] = "its rows cannot be told from those of another seal"
            continue
        gaps = Spans(record[2:4] for record in inside).missing(piece.first, piece.last)
        if not gaps:
            continue
        rows = _insert_seal(connection, run, item, gaps[0][0], sum(r[5] for r in inside))
        if rows is None:
            inconsistent[piece.path] = "it does not hold the rows of its uploaded segments"
            continue
        counts = [rows] + [0] * (len(gaps) - 1)
        written += [
            (piece.table, piece.rank, first, last, None, count)
            for (first, last), count in zip(gaps, counts, strict=True)
        ]
    return written


def _insert_seal(
    connection: duckdb.DuckDBPyConnection, run: str, item: Loaded, segment: int, there: int
) -> int | None:
    """Insert the rows of a seal that are not in the lake; None if it lacks some that are.

    Args:
        connection: to the lake, within a transaction.
        run: the run's identity.
        item: the seal.
        segment: the number that its rows get.
        there: how many rows the lake holds of it.
    """
    piece, source = item.piece, item.source
    total = _count(connection, source)
    if there:
        names = ", ".join(_columns_of(connection, source))
        source = (
            f"(SELECT {names} FROM {source} EXCEPT ALL SELECT {names} FROM {NAME}.{piece.table}"
            f" WHERE run = {text(run)} AND rank = {piece.rank}"
            f" AND segment BETWEEN {piece.first} AND {piece.last})"
        )
        if _count(connection, source) != total - there:
            return None
    connection.execute(
        f"INSERT INTO {NAME}.{piece.table} BY NAME SELECT *, {piece.rank}::INTEGER AS rank,"
        f" {text(run)} AS run, {segment}::BIGINT AS segment FROM {source}"
    )
    return total - there


def _count(connection: duckdb.DuckDBPyConnection, source: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {source}").fetchall()[0][0])


def _columns_of(connection: duckdb.DuckDBPyConnection, source: str) -> list[str]:
    found = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
    return [row[0] for row in found]
