"""A seal: one DuckDB file with the rows of many segments, sorted, and what they are.

It has two tables without a key or an index:

    <table>   the rows by window of 1,000 steps, then by layer and step, and `written_by`, their
              writer, so that those of two writers can be told apart later
    contents  whose rows they are: see `contents.Part`; `tier` is how often they were folded

Within a window all steps of a layer lie together, and the windows lie one after the other: one
layer over all steps and all layers of a few steps are both found by DuckDB's minima and maxima of
each 122,880 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from .contents import COLUMNS, Part, rows_in, to_arrow
from .schema import DUCKDB_TYPES, TABLES
from .sealing_plan import ROWS_WORTH_A_SEAL, WINDOW_STEPS, Piece
from .segment_file import open_segment
from .segments import quoted, text

WRITER_COLUMN = "written_by"
ORDER = {
    "layers": "layer, attempt, step",
    "digests": "layer, kind, attempt, step, phase",
}
_ROWS_AT_ONCE = 4_000_000  # sorted in memory: about as many rows as take 500 MB
# files that DuckDB 1.4 and later can open; blocks of 16 KiB make the many small seals of rare
# tables a tenth as large, larger ones are the default's and compress better
_STORAGE = "STORAGE_VERSION 'v1.4.0'"
_SMALL_BLOCKS = "BLOCK_SIZE 16384"


def connect(spill: Path) -> duckdb.DuckDBPyConnection:
    """A connection to build and check seals with; `spill` takes what does not fit in memory."""
    connection = duckdb.connect(":memory:")
    for setting in (
        "enable_progress_bar = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "memory_limit = '1GB'",
        f"temp_directory = {text(spill)}",
    ):
        connection.execute(f"SET {setting}")
    return connection


def build(connection: duckdb.DuckDBPyConnection, path: Path, table: str, piece: Piece) -> None:
    """Write the seal of `piece` to `path`, and prove that it holds what its files hold.

    Raises:
        duckdb.Error: it cannot be written, or a file cannot be read.
        OSError: it does not hold the very rows of its files.
    """
    small = piece.rows < ROWS_WORTH_A_SEAL
    options = ", ".join([_STORAGE, *([_SMALL_BLOCKS] if small else [])])
    seals = [file for file in piece.files if file.suffix == ".duckdb"]
    names = {"made": path, **{f"part_{n}": file for n, file in enumerate(seals)}}
    try:
        connection.execute(f"ATTACH {text(path)} AS made ({options})")
        for number, file in enumerate(seals):
            connection.execute(f"ATTACH {text(file)} AS part_{number} (READ_ONLY)")
        rows = _rows_of(piece.files, table)
        _fill(connection, table, rows, piece)
        _compare(connection, table, rows, piece)
        parts = to_arrow(piece.parts)  # noqa: F841 - because DuckDB reads it by its name
        connection.execute(
            f"CREATE TABLE made.contents AS SELECT {piece.tier}::INTEGER AS tier, * FROM parts"
        )
        connection.execute("CHECKPOINT made")
    finally:
        for name in names:
            connection.execute(f"DETACH DATABASE IF EXISTS {name}")


def read_contents(
    connection: duckdb.DuckDBPyConnection, path: Path, table: str | None = None
) -> tuple[int, list[Part]] | None:
    """Tier and contents of a seal; None where it has none, as of before there were contents.

    Args:
        connection: to read it with.
        path: the seal.
        table: None too if it is no seal of this table, or has more columns than that.

    Raises:
        duckdb.Error: the seal is damaged.
    """
    connection.execute(f"ATTACH {text(path)} AS looked_at (READ_ONLY)")
    try:
        if table is not None:
            columns = columns_of(connection, "looked_at", table)
            known = {*TABLES[table].names, WRITER_COLUMN}
            if not is_table(columns, table) or not columns.keys() <= known:
                return None
        return contents_of(connection, "looked_at")
    finally:
        connection.execute("DETACH looked_at")


def contents_of(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[int, list[Part]] | None:
    """As `read_contents`, of a seal that is attached as `name`."""
    if not columns_of(connection, name, "contents"):
        return None
    found = connection.execute(f"SELECT tier, {COLUMNS} FROM {name}.contents").fetchall()
    return max((row[0] for row in found), default=0), [Part(*row[1:]) for row in found]


def columns_of(connection: duckdb.DuckDBPyConnection, name: str, table: str) -> dict[str, str]:
    """Columns of a table of an attached seal, and their types; none if it is a view.

    A view of a file that came from somewhere would be a query of somebody else's.
    """
    found = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = $name"
        " AND schema_name = 'main' AND table_name = $table AND table_oid IN (SELECT table_oid"
        " FROM duckdb_tables() WHERE database_name = $name AND table_name = $table)"
        " ORDER BY column_index",
        {"name": name, "table": table},
    )
    return dict(found.fetchall())


def is_table(columns: dict[str, str], table: str) -> bool:
    """Whether a seal's columns are those of a table of the trace, as far as both have them."""
    own = {field.name: DUCKDB_TYPES[field.type] for field in TABLES[table]}
    own[WRITER_COLUMN] = "VARCHAR"
    return {"attempt", "step"} <= columns.keys() and all(
        own.get(name, kind) == kind for name, kind in columns.items()
    )


def sound_rows(connection: duckdb.DuckDBPyConnection, path: Path, table: str) -> int:
    """Rows of a seal, every block read; −1 if it is damaged or does not hold what it says."""
    try:
        connection.execute(f"ATTACH {text(path)} AS looked_at (READ_ONLY)")
        try:
            if not is_table(columns_of(connection, "looked_at", table), table):
                return -1
            rows, _ = _fingerprint(connection, f"looked_at.{table}", "t")
            found = contents_of(connection, "looked_at")
        finally:
            connection.execute("DETACH looked_at")
    except duckdb.Error:
        return -1
    return rows if found is None or rows_in(found[1]) == rows else -1


def _rows_of(files: Sequence[Path], table: str) -> str:
    """SQL for the rows of segments and attached seals, with their writer."""
    sources, seal = [], 0
    segments: dict[str | None, list[str]] = {}
    for file in files:
        if file.suffix == ".duckdb":
            sources.append(f"SELECT * FROM part_{seal}.{table}")
            seal += 1
        else:
            segments.setdefault(open_segment(file).writer, []).append(quoted(file))
    sources += [
        f"SELECT *, {'NULL' if writer is None else text(writer)}::VARCHAR AS {WRITER_COLUMN}"
        f" FROM read_parquet([{', '.join(paths)}], hive_partitioning = false, union_by_name = true)"
        for writer, paths in segments.items()
    ]
    return "(" + " UNION ALL BY NAME ".join(sources) + ")"


def _fill(connection: duckdb.DuckDBPyConnection, table: str, rows: str, piece: Piece) -> None:
    order = f"step // {WINDOW_STEPS}, {ORDER.get(table, 'attempt, step')}"
    connection.execute(f"CREATE TABLE made.{table} AS SELECT * FROM {rows} LIMIT 0")
    for condition in _slices(connection, rows, piece):
        connection.execute(
            f"INSERT INTO made.{table} BY NAME"
            f" SELECT * FROM {rows} WHERE {condition} ORDER BY {order}"
        )


def _slices(connection: duckdb.DuckDBPyConnection, rows: str, piece: Piece) -> list[str]:
    """Conditions for whole windows, in order, with about as many rows as fit in memory."""
    if piece.rows <= _ROWS_AT_ONCE:
        return ["true"]
    windows = connection.execute(
        f"SELECT step // {WINDOW_STEPS} AS w, count(*) FROM {rows} GROUP BY w ORDER BY w"
    ).fetchall()
    ends, waiting = [], 0
    for (window, count), following in zip(windows, [*windows[1:], None], strict=True):
        waiting += count
        if following is None or waiting + following[1] > _ROWS_AT_ONCE:
            ends.append(window)
            waiting = 0
    bounds = zip([None, *ends], ends, strict=False)
    return [
        f"step // {WINDOW_STEPS} <= {end}"
        + ("" if begin is None else f" AND step // {WINDOW_STEPS} > {begin}")
        for begin, end in bounds
    ]


def _compare(connection: duckdb.DuckDBPyConnection, table: str, rows: str, piece: Piece) -> None:
    columns = [row[0] for row in connection.execute(f"DESCRIBE made.{table}").fetchall()]
    listed = ", ".join(columns)
    made = _fingerprint(connection, f"made.{table}", listed)
    if made != _fingerprint(connection, rows, listed) or made[0] != piece.rows:
        raise OSError(f"the seal does not hold the {piece.rows} rows of its files")


def _fingerprint(connection: duckdb.DuckDBPyConnection, rows: str, columns: str) -> tuple[int, int]:
    """Number and sum of the hashes of rows, which does not depend on their order."""
    found = connection.execute(f"SELECT count(*), sum(hash({columns})) FROM {rows} AS t")
    count, hashes = found.fetchall()[0]
    return count, hashes or 0
