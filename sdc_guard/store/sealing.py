"""Folding many small segments into one DuckDB file.

A seal is built under a temporary name, published by rename and only ever opened read-only. The
segments that it covers are deleted by a later pass, once the seal has been there long enough for
every reader that listed them to have finished, and only if every row of theirs is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from .atomic import exclusive, publish
from .schema import TABLES
from .segment_file import segment_damage
from .segments import Listing, listing, quoted, rank_folder, ranks, seal_path

GRACE_SECONDS = 10.0
ROWS_PER_SEAL = 20_000_000
ORDER = {
    "layers": "layer, attempt, step",
    "digests": "layer, kind, attempt, step, phase",
}
# files that DuckDB 1.4 and later can open
_STORAGE: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": "v1.4.0"
}


def seal_run(run: Path, *, at_least: int = 2) -> list[Path]:
    """Seal every table of every rank that has `at_least` unsealed segments.

    A damaged segment is left where it is, between the seals of its neighbours.

    Returns:
        the seals written; empty when another process is sealing this run.

    Raises:
        OSError: as the file system gave it (disk full, read-only).
    """
    if not (run / "trace").is_dir():
        return []
    written: list[Path] = []
    with exclusive(run / "trace" / ".sealing") as mine:
        if not mine:
            return []
        for table in TABLES:
            for rank in ranks(run, table):
                folder = rank_folder(run, table, rank)
                _delete_leftovers(folder)
                _delete_covered(folder, table, time.time())
                written += _seal_folder(folder, table, at_least)
    return written


def _seal_folder(folder: Path, table: str, at_least: int) -> list[Path]:
    found = listing(folder)
    if len(found.live_segments()) < at_least:
        return []
    return [_seal(folder, table, group) for group in _groups(found) if len(group) >= at_least]


def _groups(found: Listing) -> Iterator[dict[int, Path]]:
    """Unsealed segments that may share a seal: nothing damaged or sealed between them."""
    live = set(found.live_segments())
    group: dict[int, Path] = {}
    rows = 0
    for number, path in sorted(found.segments.items()):
        sound = path in live and segment_damage(path) is None
        if not sound or rows > ROWS_PER_SEAL or (group and number != max(group) + 1):
            if group:
                yield group
            group, rows = {}, 0
        if sound:
            group[number] = path
            rows += _rows(path)
    if group:
        yield group


def _seal(folder: Path, table: str, group: dict[int, Path]) -> Path:
    target = seal_path(folder, min(group), max(group))
    rows = sum(_rows(path) for path in group.values())

    def build(path: Path) -> None:
        order = ORDER.get(table, "attempt, step")
        files = ", ".join(quoted(segment) for segment in group.values())
        with duckdb.connect(str(path), config=_STORAGE) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(
                f"CREATE TABLE {table} AS SELECT * FROM"
                f" read_parquet([{files}], hive_partitioning = false, union_by_name = true)"
                f" ORDER BY {order}"
            )
        if _rows_in_seal(path, table) != rows:
            raise OSError(f"the seal of {folder} does not hold the {rows} rows of its segments")

    try:
        publish(target, build)
    except duckdb.Error as error:
        raise OSError(f"cannot seal {folder}: {str(error).splitlines()[0]}") from None
    return target


def _delete_covered(folder: Path, table: str, now: float) -> None:
    found = listing(folder)
    for (first, last), seal in found.seals.items():
        covered = {n: path for n, path in found.segments.items() if first <= n <= last}
        if not covered or now - seal.stat().st_mtime <= GRACE_SECONDS:
            continue
        # what is gone already was found in the seal before
        if _rows_in_seal(seal, table) < sum(_rows(path) for path in covered.values()):
            continue
        for path in covered.values():
            path.unlink(missing_ok=True)


def _delete_leftovers(folder: Path) -> None:
    """Delete what a killed sealing left; nobody else seals while the lock is held."""
    for path in folder.glob(".seal-*.tmp*"):
        path.unlink(missing_ok=True)


def _rows(segment: Path) -> int:
    try:
        return int(pq.read_metadata(segment).num_rows)
    except (OSError, pa.ArrowException):
        return 1 << 62  # not known to be in any seal


def _rows_in_seal(seal: Path, table: str) -> int:
    """Rows of a seal, every block read; −1 if it is damaged."""
    try:
        with duckdb.connect(str(seal), read_only=True) as connection:
            found = connection.execute(f"SELECT count(*), bit_xor(hash(t)) FROM {table} AS t")
            return int(found.fetchall()[0][0])
    except duckdb.Error:
        return -1
