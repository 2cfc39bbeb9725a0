"""Folding many small segments into few DuckDB files.

A seal is built under a temporary name, published by rename and only ever opened read-only. What a
seal covers, segments and narrower seals, is deleted by a later pass, once the seal has been there
long enough for every reader that listed them to have finished, and only if it was read whole
again. `sealing_plan` says what is folded with what, `seal_file` what a seal looks like.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from .atomic import exclusive, publish
from .contents import parts_of_segment, rows_in
from .schema import TABLES
from .seal_file import build, connect, read_contents, sound_rows
from .sealing_plan import NEIGHBOURS, ROWS_PER_SEAL, Piece, plan
from .segment_file import open_segment
from .segments import Listing, Span, listing, rank_folder, ranks, seal_path

GRACE_SECONDS = 10.0


def seal_run(run: Path, *, at_least: int = 2) -> list[Path]:
    """Seal every table of every rank that has `at_least` unsealed segments.

    A damaged segment is left where it is, between the seals of its neighbours.

    Returns:
        the seals written; empty when another process is sealing this run.

    Raises:
        OSError: as the file system gave it (disk full, read-only), after all other folders.
    """
    if not (run / "trace").is_dir():
        return []
    written: list[Path] = []
    trouble: OSError | None = None
    with exclusive(run / "trace" / ".sealing") as mine:
        if not mine:
            return []
        spill = run / "trace" / ".sealing.spill"
        shutil.rmtree(spill, ignore_errors=True)
        try:
            with connect(spill) as connection:
                for table in TABLES:
                    for rank in ranks(run, table):
                        folder = rank_folder(run, table, rank)
                        try:
                            written += _seal_folder(connection, folder, table, at_least)
                        except OSError as error:  # the other folders are not to suffer from it
                            trouble = trouble or error
        finally:
            shutil.rmtree(spill, ignore_errors=True)
    if trouble is not None:
        raise trouble
    return written


def _seal_folder(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: str, at_least: int
) -> list[Path]:
    _delete_leftovers(folder)
    _delete_covered(connection, folder, table, time.time())
    found = listing(folder)
    if len(found.live_segments()) < at_least and len(found.live_seals()) < NEIGHBOURS:
        return []
    pieces = [_piece(connection, span, path, table) for span, path in found.live().items()]
    return [
        _seal(connection, folder, table, piece)
        for piece in plan(pieces, at_least=at_least, rows_per_seal=ROWS_PER_SEAL)
    ]


def _piece(connection: duckdb.DuckDBPyConnection, span: Span, path: Path, table: str) -> Piece:
    barrier = Piece(*span, (path,), barrier=True)
    if path.suffix == ".parquet":
        segment = open_segment(path)
        if segment.damage is not None or segment.has_more:
            return barrier  # columns of a newer version would be lost
        parts = parts_of_segment(segment, span[0])
        if rows_in(parts) != segment.rows:
            return barrier  # rows without a step belong to no window
        return Piece(*span, (path,), tuple(parts))
    try:
        found = read_contents(connection, path, table)
    except duckdb.Error:
        return barrier
    return barrier if found is None else Piece(*span, (path,), tuple(found[1]), found[0])


def _seal(connection: duckdb.DuckDBPyConnection, folder: Path, table: str, piece: Piece) -> Path:
    target = seal_path(folder, piece.first, piece.last)
    try:
        publish(target, lambda path: build(connection, path, table, piece))
    except duckdb.Error as error:
        raise OSError(f"cannot seal {folder}: {str(error).splitlines()[0]}") from None
    return target


def _delete_covered(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: str, now: float
) -> None:
    found = listing(folder)
    deleted: set[Path] = set()
    for (first, last), seal in sorted(
        found.seals.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        within = Listing(
            {n: path for n, path in found.segments.items() if first <= n <= last},
            {(a, b): path for (a, b), path in found.seals.items() if first <= a and b <= last},
        )
        covered = {*within.segments.values(), *within.seals.values()} - {seal, *deleted}
        if seal in deleted or not covered or now - _made(seal, now) <= GRACE_SECONDS:
            continue
        within.seals.pop((first, last))
        # a seal was compared with what it covers when it was made; what is gone of that already
        # was found in it before
        left = [path for path in within.live().values() if path in covered]
        if sound_rows(connection, seal, table) < sum(_rows(connection, p, table) for p in left):
            continue
        if not _is_made_of(connection, seal, within, table):
            continue
        for path in covered:
            path.unlink(missing_ok=True)
        deleted |= covered


def _made(seal: Path, now: float) -> float:
    try:
        return seal.stat().st_mtime
    except OSError:  # a link to nothing
        return now


def _is_made_of(
    connection: duckdb.DuckDBPyConnection, seal: Path, within: Listing, table: str
) -> bool:
    """Whether a seal names the writers of what it covers: one of another rank does not."""
    try:
        found = read_contents(connection, seal)
    except duckdb.Error:
        return False
    if found is None:
        return True  # of before there were contents
    pieces = [_piece(connection, span, path, table) for span, path in within.live().items()]
    named = {(part.writer, part.attempt) for part in found[1]}
    return all((p.writer, p.attempt) in named for piece in pieces for p in piece.parts)


def _delete_leftovers(folder: Path) -> None:
    """Delete what a killed sealing left; nobody else seals while the lock is held."""
    for path in folder.glob(".seal-*.tmp*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _rows(connection: duckdb.DuckDBPyConnection, path: Path, table: str) -> int:
    unknown = 1 << 62  # not known to be in any seal
    if path.suffix == ".duckdb":
        rows = sound_rows(connection, path, table)
        return unknown if rows < 0 else rows
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return unknown
