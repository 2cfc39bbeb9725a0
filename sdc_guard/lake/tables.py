"""The tables of a lake.

Those of `schema` hold the rows of all runs and ranks: their columns, and then

    rank     as in the views of a run's folder
    run      the identity of the run
    segment  the number of the row's segment; of rows that came from a seal, the first of its range

    runs      a row for each content of a run's run.json
    uploaded  a row for each segment, or range of segments, whose rows are in the lake; committed
              together with them, so that neither is there without the other
    turn_NN   one row each; see `turns`
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import duckdb

from ..store.schema import DUCKDB_TYPES, TABLES
from .connection import NAME

TURNS = 32
_RANKS_PER_TURN = 8  # a usual node
_OWN: Final = {"rank": "INTEGER", "run": "VARCHAR", "segment": "BIGINT"}
_OTHERS: Final[dict[str, dict[str, str]]] = {
    # attempts, layers: how many its content names; the content with more of them is the newer
    "runs": {
        "run": "VARCHAR",
        "name": "VARCHAR",
        "attempts": "INTEGER",
        "layers": "INTEGER",
        "content": "VARCHAR",
        "uploaded": "DOUBLE",
    },
    # first, last: segment numbers; crc: of a segment, null for a range; uploaded: seconds since
    # the epoch
    "uploaded": {
        "run": "VARCHAR",
        "table_name": "VARCHAR",
        "rank": "INTEGER",
        "first": "BIGINT",
        "last": "BIGINT",
        "crc": "BIGINT",
        "rows": "BIGINT",
        "uploaded": "DOUBLE",
    },
}


def columns(table: str) -> dict[str, str]:
    """The columns of a table of the lake, with DuckDB's types."""
    if table in _OTHERS:
        return _OTHERS[table]
    return {field.name: DUCKDB_TYPES[field.type] for field in TABLES[table]} | _OWN


def turns(run: str, ranks: set[int]) -> list[str]:
    """The tables that an upload of these ranks updates first.

    DuckLake lets two transactions append at once, and has no keys. Of two that update the same
    table it refuses the later one: so nobody commits what another committed since his snapshot.
    Ranks of one node share a table, those of several nodes seldom do.
    """
    blocks = {rank // _RANKS_PER_TURN for rank in ranks}
    return sorted({f"turn_{(crc32(run.encode()) + block) % TURNS:02d}" for block in blocks})


def present(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    """The tables that the lake has, with their columns."""
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns()"
        f" WHERE database_name = '{NAME}' AND schema_name = 'main'"
    ).fetchall():
        found.setdefault(table, set()).add(column)
    return found


def newest_description(connection: duckdb.DuckDBPyConnection, source: str, run: str) -> str | None:
    """The newest content of a run's run.json, from the table `runs` or a version of it."""
    # a node may tell of an older content after another told of a newer one
    found = connection.execute(
        f"SELECT content FROM {source} WHERE run = ?"
        " ORDER BY attempts DESC, layers DESC, uploaded DESC LIMIT 1",
        [run],
    ).fetchall()
    return str(found[0][0]) if found else None


def create(connection: duckdb.DuckDBPyConnection) -> None:
    """Make what the lake lacks: tables, or columns that an older version did not know.

    Raises:
        duckdb.TransactionException: another process does the same at this moment.
    """
    statements = _lacking(present(connection))
    if not statements:
        return
    connection.begin()
    for statement in statements:
        connection.execute(statement)
    connection.commit()


def _lacking(there: dict[str, set[str]]) -> list[str]:
    statements: list[str] = []
    for table in (*TABLES, *_OTHERS):
        wanted = columns(table)
        if table not in there:
            defined = ", ".join(f"{name} {kind}" for name, kind in wanted.items())
            statements.append(f"CREATE TABLE {NAME}.{table} ({defined})")
            # a file belongs to one run, also after small files were merged
            statements.append(f"ALTER TABLE {NAME}.{table} SET PARTITIONED BY (run)")
            continue
        statements += [
            f"ALTER TABLE {NAME}.{table} ADD COLUMN {name} {kind}"
            for name, kind in wanted.items()
            if name not in there[table]
        ]
    for number in range(TURNS):
        if f"turn_{number:02d}" not in there:
            statements.append(f"CREATE TABLE {NAME}.turn_{number:02d} (turn BIGINT)")
            statements.append(f"INSERT INTO {NAME}.turn_{number:02d} VALUES (0)")
    return statements
