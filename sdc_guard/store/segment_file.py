"""A segment's bytes: Parquet, with a checksum over all of it between the pages and the footer.

Parquet has checksums for pages at most, DuckDB does not read them, and nothing guards the footer:
a flipped bit would pass for a value, a column name or a statistic. A Parquet reader finds the
footer from the end of the file and the pages from the footer, so that bytes in between are free.

    PAR1 | pages | SDCG crc32 | footer | its length | PAR1

The footer's key-value metadata say who wrote the segment and how many rows that writer had written
before it, so that the rows of a file that is damaged or gone are known from its neighbours.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .regular import open_regular
from .schema import TABLES

_MARK = b"SDCG"
_MARK_SIZE = len(_MARK) + 4
_TAIL = 8  # length of the footer, PAR1
_LARGEST = 1 << 30  # bytes; a segment holds the rows of two seconds
_MOST_ROWS = 1 << 24
_WRITER = "sdc_guard.writer"
_ROWS_BEFORE = "sdc_guard.rows_before"


def encode(table: pa.Table, *, writer: str | None = None, rows_before: int | None = None) -> bytes:
    """The content of a segment with these rows.

    Args:
        table: the rows.
        writer: a name that no other process that writes for this rank has, such as
            `secrets.token_hex(8)` once per writer.
        rows_before: rows that this writer has published of this table before.
    """
    # of the system: Arrow's own allocator keeps 15 MB for the 2 MB that a segment takes
    pool = pa.system_memory_pool()
    sink = pa.BufferOutputStream(memory_pool=pool)
    # segments are small and soon folded into a seal: zstd, statistics and dictionaries of numbers
    # take five times as long for the same size
    strings = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="snappy",
        write_statistics=False,
        use_dictionary=strings or False,
        store_schema=False,
        memory_pool=pool,
    ) as file:
        file.write_table(table)
        if writer is not None and rows_before is not None:
            file.add_key_value_metadata({_WRITER: writer, _ROWS_BEFORE: str(rows_before)})
    content: bytes = sink.getvalue().to_pybytes()
    start = _footer(content)
    pages, footer = content[:start], content[start:]
    return pages + _mark(pages, footer) + footer


@dataclass(frozen=True)
class Segment:
    """A segment's file, read whole.

    Attributes:
        content: its bytes.
        damage: why they cannot be trusted, or None; then the others say something.
        rows: how many it has.
        columns: the names of its columns, those that its table has.
        has_more: whether it has others, as a newer version may have written.
        writer, rows_before: who wrote it, and how many rows before it; None where it was not
            recorded.
    """

    content: bytes
    damage: str | None
    rows: int = 0
    columns: tuple[str, ...] = ()
    has_more: bool = False
    writer: str | None = None
    rows_before: int | None = None

    def crc(self) -> int:
        """The checksum that it carries, unsigned 32-bit; of a sound one."""
        start = _footer(self.content)
        return int.from_bytes(self.content[start - 4 : start], "little")

    def read(self, columns: list[str]) -> pa.Table:
        """Some of its columns, in the order in which the rows were recorded."""
        file = pq.ParquetFile(pa.BufferReader(self.content))
        return file.read(columns=columns, use_threads=False)


def open_segment(path: Path) -> Segment:
    """Read a segment and check every byte of it, and whether it is one of its folder's table.

    Raises:
        FileNotFoundError: it is gone.
    """
    try:
        with open_regular(path, most=_LARGEST) as file:
            content = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        return Segment(b"", f"cannot be read: {error.strerror}")
    damage = _damage(content)
    if damage is not None:
        return Segment(content, damage)
    try:
        return _described(content, TABLES[path.parent.parent.name])
    except Exception as error:  # noqa: BLE001 - because anything can be in a file whose checksum is right
        told = " ".join(str(error).split())
        return Segment(content, f"no segment of this table ({told})")


def _described(content: bytes, schema: pa.Schema) -> Segment:
    """A segment whose bytes are those that were written.

    Raises:
        Exception: they are none of a segment of this table.
    """
    metadata = pq.read_metadata(pa.BufferReader(content))
    found = metadata.schema.to_arrow_schema()
    if metadata.num_rows > _MOST_ROWS:
        raise ValueError(f"{metadata.num_rows:,} rows")
    for name in schema.names:
        if name in found.names and found.field(name).type != schema.field(name).type:
            raise TypeError(f"{name} is {found.field(name).type}, not {schema.field(name).type}")
    if not {"attempt", "step"} <= set(found.names):
        raise KeyError("no column attempt or step")
    columns = tuple(name for name in found.names if name in schema.names)
    segment = Segment(content, None, metadata.num_rows, columns, len(found) > len(columns))
    told = metadata.metadata or {}
    writer, before = told.get(_WRITER.encode()), told.get(_ROWS_BEFORE.encode())
    if writer is None or before is None:
        return segment
    return replace(segment, writer=writer.decode(), rows_before=int(before))


def segment_damage(path: Path) -> str | None:
    """Why a segment cannot be trusted, or None.

    Raises:
        FileNotFoundError: it is gone.
    """
    return open_segment(path).damage


def _damage(content: bytes) -> str | None:
    start = _footer(content)
    pages, mark = content[: start - _MARK_SIZE], content[start - _MARK_SIZE : start]
    if start < _MARK_SIZE + _TAIL or not mark.startswith(_MARK):
        return f"no whole segment ({len(content):,} bytes)"
    if mark != _mark(pages, content[start:]):
        return "CRC mismatch"
    return None


def _mark(pages: bytes, footer: bytes) -> bytes:
    return _MARK + zlib.crc32(footer, zlib.crc32(pages)).to_bytes(4, "little")


def _footer(content: bytes) -> int:
    """Where the footer starts; below zero in what is no Parquet file."""
    return len(content) - _TAIL - int.from_bytes(content[-_TAIL:-4], "little")
