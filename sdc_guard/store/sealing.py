"""Folding many small segments into one DuckDB file.

A seal is built under a temporary name, published by rename and only ever opened read-only. The
segments that it covers are deleted by a later pass, once the seal has been there long enough for
every reader that listed them to have finished.
"""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from .atomic import exclusive, publish
from .schema import TABLES
from .segments import listing, rank_folder, ranks, seal_path

GRACE_SECONDS = 10.0
ORDER = {
    "layers": "layer, attempt, step",
    "digests": "layer, kind, attempt, step, phase",
}


def seal_run(run: Path, *, at_least: int = 2) -> list[Path]:
    """Seal every table of every rank that has `at_least` unsealed segments.

    Returns:
        the seals written; empty when another process is sealing this run.
    """
    if not (run / "trace").is_dir():
        return []
    written = []
    with exclusive(run / "trace" / ".sealing") as mine:
        if not mine:
            return []
        for table in TABLES:
            for rank in ranks(run, table):
                folder = rank_folder(run, table, rank)
                _delete_covered(folder, time.time())
                seal = _seal_folder(folder, table, at_least)
                if seal is not None:
                    written.append(seal)
    return written


def _seal_folder(folder: Path, table: str, at_least: int) -> Path | None:
    found = listing(folder)
    segments = found.live_segments()
    if len(segments) < at_least:
        return None
    numbers = [number for number, path in found.segments.items() if path in set(segments)]
    target = seal_path(folder, min(numbers), max(numbers))

    def build(path: Path) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.execute("SET enable_progress_bar = false")
            files = [str(segment) for segment in segments]
            order = ORDER.get(table, "attempt, step")
            connection.execute(
                f"CREATE TABLE {table} AS SELECT * FROM read_parquet($files, hive_partitioning = false) ORDER BY {order}",
                {"files": files},
            )

    publish(target, build)
    return target


def _delete_covered(folder: Path, now: float) -> None:
    found = listing(folder)
    old = [
        span for span, path in found.seals.items() if now - path.stat().st_mtime > GRACE_SECONDS
    ]
    for number, path in found.segments.items():
        if any(first <= number <= last for first, last in old):
            path.unlink(missing_ok=True)
