"""A run's tables in files that need nothing of ours: one DuckDB file, or a Parquet file a table."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb

from ..errors import UsageError
from .atomic import fsync_file, fsync_folder, publish
from .schema import FORMAT_VERSION, TABLES
from .trace_reader import TraceReader
from .whole import VIEWS

EXPORTED = (*TABLES, "layer_names", "attempts", "meta")
# what DuckDB 1.4 and later can open, as the seals
_STORAGE = "STORAGE_VERSION 'v1.4.0'"


def export_duckdb(reader: TraceReader, target: Path, *, replace: bool = False) -> None:
    """Write all tables into one DuckDB file, atomically.

    It holds the tables as a query of the reader sees them, `layer_names`, `attempts`, the views
    over all ranks, and `meta`, a row about the export itself.

    Args:
        reader: of the run.
        target: the file.
        replace: whether it may take the place of a file that is there.

    Raises:
        UsageError: the target is there, its folder is not, or it cannot be written.
    """
    _check_folder(target)
    if target.exists() and (not replace or target.is_dir()):
        raise _taken(target)

    def build(path: Path) -> None:
        try:
            _ask(reader, target, f"ATTACH {_text(path)} AS exported ({_STORAGE})")
            try:
                for table, query in _queries(reader):
                    _ask(reader, target, f"CREATE TABLE exported.{table} AS {query()}")
            finally:
                _ask(reader, target, "DETACH exported")
            _add_views(path)
        except duckdb.Error as error:
            raise _unwritable(target, str(error)) from None
        finally:
            path.with_name(path.name + ".wal").unlink(missing_ok=True)

    try:
        publish(target, build, replace=replace)
    except FileExistsError:
        raise _taken(target) from None


def export_parquet(reader: TraceReader, folder: Path, *, replace: bool = False) -> None:
    """Write each table into a Parquet file of its name; the folder appears with all of them.

    Args:
        reader: of the run.
        folder: made.
        replace: whether it may take the place of an earlier export there.

    Raises:
        UsageError: the folder is there, holds other files, or cannot be written.
    """
    _check_folder(folder)
    names = {f"{table}.parquet" for table in EXPORTED}
    if folder.exists():
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
        if there and not replace:
            raise _taken(folder)
        if there - names:
            raise UsageError(
                f"the folder holds what is no export of a run ({min(there - names)})",
                where=str(folder),
                next_step="give another folder",
            )
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    temporary.mkdir()
    try:
        for table, query in _queries(reader):
            path = temporary / f"{table}.parquet"
            _ask(reader, folder, f"COPY ({query()}) TO {_text(path)} (FORMAT parquet)")
            fsync_file(path)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _queries(reader: TraceReader) -> list[tuple[str, Callable[[], str]]]:
    """Table to the query of its content; `meta` last, for damage is found while reading."""
    tables = [table for table in EXPORTED if table != "meta"]
    return [
        *((table, lambda table=table: f"SELECT * FROM main.{table}") for table in tables),
        ("meta", lambda: _meta(reader)),
    ]


def _meta(reader: TraceReader) -> str:
    from .. import __version__

    damaged = ", ".join(
        _text(f"{path.relative_to(reader.run)}: {reason}")
        for path, reason in sorted(reader.damaged.items())
    )
    newest = [attempt.attempt for attempt in reader.run_file.attempts][-1:]
    attempt = reader.attempt if reader.attempt is not None else next(iter(newest), None)
    return (
        f"SELECT {_text(reader.run_file.name)} AS run, {FORMAT_VERSION} AS format_version,"
        f" {_text(__version__)} AS sdc_guard_version,"
        f" {'NULL' if attempt is None else attempt}::INTEGER AS attempt,"
        f" {reader.run_file.world_size} AS world_size, now()::TIMESTAMP AS exported_utc,"
        f" [{damaged}]::VARCHAR[] AS damaged_files"
    )


def _add_views(path: Path) -> None:
    # by a connection of its own: made through the reader, they would name its databases
    with duckdb.connect(str(path)) as connection:
        for name, sql in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {sql}")


def _ask(reader: TraceReader, target: Path, statement: str) -> None:
    try:
        reader.rows(statement)
    except UsageError as error:
        raise _unwritable(target, error.what.removeprefix("the query failed: ")) from None


def _check_folder(target: Path) -> None:
    if not target.absolute().parent.is_dir():
        raise UsageError("no such folder", where=str(target.absolute().parent))


def _taken(target: Path) -> UsageError:
    return UsageError("there already", where=str(target), next_step="--force replaces it")


def _unwritable(target: Path, reason: str) -> UsageError:
    return UsageError(
        f"the export failed, nothing is left of it: {reason.splitlines()[0]}", where=str(target)
    )


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"
