"""Files of a trace, checked and ready to be inserted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from ..store.seal_file import WRITER_COLUMN
from ..store.segment_file import open_segment
from .pending import Piece


@dataclass(frozen=True)
class Loaded:
    """A piece whose content is sound.

    Attributes:
        piece: the piece.
        rows: of a segment, its rows; None of a seal.
        crc: of a segment, its checksum; None of a seal.
        source: of a seal, a SELECT of its rows; empty of a segment.
    """

    piece: Piece
    rows: pa.Table | None = None
    crc: int | None = None
    source: str = ""


@dataclass
class Batch:
    """What goes into the lake together, and the files that turned out damaged."""

    loaded: list[Loaded] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)


@contextlib.contextmanager
def loading(connection: duckdb.DuckDBPyConnection, pieces: Iterable[Piece]) -> Iterator[Batch]:
    """Read and check pieces; seals stay attached within. What is gone by now is left out."""
    batch = Batch()
    names: list[str] = []
    try:
        for piece in pieces:
            try:
                if piece.kind == "segment":
                    batch.loaded.append(_segment(piece))
                else:
                    name = f"piece_{len(names)}"
                    source = _attach(connection, piece, name, names)
                    batch.loaded.append(Loaded(piece, source=source))
            except FileNotFoundError:
                continue  # folded into a seal: the next look finds it there
            except (OSError, ValueError, duckdb.Error) as error:
                if piece.path.exists():
                    batch.damaged[piece.path] = str(error).splitlines()[0]
        yield batch
    finally:
        for name in names:
            with contextlib.suppress(duckdb.Error):
                connection.execute(f"DETACH {name}")


def _segment(piece: Piece) -> Loaded:
    """One read: the bytes that are checked are those that are uploaded."""
    segment = open_segment(piece.path)
    if segment.damage is not None:
        raise ValueError(segment.damage)
    return Loaded(piece, segment.read(list(segment.columns)), segment.crc())


def _attach(
    connection: duckdb.DuckDBPyConnection, piece: Piece, name: str, names: list[str]
) -> str:
    path = str(piece.path).replace("'", "''")
    connection.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
    names.append(name)
    source = f"(SELECT COLUMNS(c -> c <> '{WRITER_COLUMN}') FROM {name}.{piece.table})"
    # DuckDB's blocks have checksums: a damaged one fails here, and not in the middle of a commit
    connection.execute(f"SELECT bit_xor(hash(t)) FROM {source} AS t").fetchall()
    return source
