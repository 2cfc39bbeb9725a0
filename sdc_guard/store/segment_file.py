"""A segment's bytes: Parquet, with a checksum over all of it between the pages and the footer.

Parquet has checksums for pages at most, DuckDB does not read them, and nothing guards the footer:
a flipped bit would pass for a value, a column name or a statistic. A Parquet reader finds the
footer from the end of the file and the pages from the footer, so that bytes in between are free.

    PAR1 | pages | SDCG crc32 | footer | its length | PAR1
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_MARK = b"SDCG"
_MARK_SIZE = len(_MARK) + 4
_TAIL = 8  # length of the footer, PAR1


def encode(table: pa.Table) -> bytes:
    """The content of a segment with these rows."""
    # of the system: Arrow's own allocator keeps 15 MB for the 2 MB that a segment takes
    pool = pa.system_memory_pool()
    sink = pa.BufferOutputStream(memory_pool=pool)
    # segments are small and soon folded into a seal: zstd, statistics and dictionaries of numbers
    # take five times as long for the same size
    strings = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(
        table,
        sink,
        compression="snappy",
        write_statistics=False,
        use_dictionary=strings or False,
        store_schema=False,
        memory_pool=pool,
    )
    content: bytes = sink.getvalue().to_pybytes()
    start = _footer(content)
    pages, footer = content[:start], content[start:]
    return pages + _mark(pages, footer) + footer


def segment_damage(path: Path) -> str | None:
    """Why a segment cannot be trusted, or None.

    Raises:
        FileNotFoundError: it is gone.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return content_damage(content)


def content_damage(content: bytes) -> str | None:
    """Why the bytes of a segment cannot be trusted, or None."""
    start = _footer(content)
    pages, mark = content[: start - _MARK_SIZE], content[start - _MARK_SIZE : start]
    if start < _MARK_SIZE + _TAIL or not mark.startswith(_MARK):
        return f"no whole segment ({len(content):,} bytes)"
    if mark != _mark(pages, content[start:]):
        return "CRC mismatch"
    return None


def content_crc(content: bytes) -> int:
    """The checksum that a sound segment carries, unsigned 32-bit."""
    start = _footer(content)
    return int.from_bytes(content[start - 4 : start], "little")


def segment_columns(path: Path) -> tuple[str, ...]:
    """The names of the columns of a sound segment.

    Raises:
        FileNotFoundError: it is gone.
    """
    return tuple(pq.read_schema(path).names)


def _mark(pages: bytes, footer: bytes) -> bytes:
    return _MARK + zlib.crc32(footer, zlib.crc32(pages)).to_bytes(4, "little")


def _footer(content: bytes) -> int:
    """Where the footer starts; below zero in what is no Parquet file."""
    return len(content) - _TAIL - int.from_bytes(content[-_TAIL:-4], "little")
