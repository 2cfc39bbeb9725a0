"""A `torch.save` zip file that is a range of a larger file, or lies in memory."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import torch

from ...digest.crc32 import crc32
from ..extent import Repeats, extent, read_extent
from ..inert_pickle import StoredTensor
from ..read_trouble import raise_trouble
from ..regular_file import open_unbuffered
from ..reused_buffers import PIECE, fresh_buffer, reused_buffer

_STRUCTURE = "data.pkl"
_NAME_LENGTHS = slice(26, 30)  # of a zip file's local header: of the name, of what follows it
_HEADER = 30
_WHOLE = 1 << 20  # ranges up to this size are read at once
_LONGEST_STRUCTURE = 1 << 28


class DamagedItem(Exception):
    """What is wrong with an item, in a few words."""


@dataclass(frozen=True)
class Source:
    """Where the zip file is: a range of a file, or `content` if it is in memory."""

    file: Path
    offset: int = 0
    length: int = 0
    content: bytes | None = None

    def stream(self) -> BinaryIO:
        """It as a seekable file of its own.

        Raises:
            DamagedItem: the file ends before the range does, or is none.
        """
        if self.content is not None:
            return io.BytesIO(self.content)
        if not self.file.is_file():
            raise DamagedItem(f"{self.file.name} is missing")
        raw = open_unbuffered(self.file)
        try:
            size = raw.seek(0, io.SEEK_END)
            if self.offset + self.length > size:
                end = self.offset + self.length
                raise DamagedItem(f"{self.file.name} ends at byte {size:,}, before {end:,}")
            stream = io.BufferedReader(_Range(raw, self.offset, self.length), 1 << 16)
            if self.length > _WHOLE:
                return cast(BinaryIO, stream)
            with stream:
                return io.BytesIO(stream.read())
        except BaseException:
            raw.close()
            raise


class _Range(io.RawIOBase):
    """A range of a file, read-only, as a file. Closing it closes the file."""

    def __init__(self, raw: io.FileIO, start: int, length: int) -> None:
        super().__init__()
        self._raw, self._start, self._length, self._at = raw, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError("before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # a Buffer, by typeshed
        wanted = max(0, min(len(buffer), self._length - self._at))
        self._raw.seek(self._start + self._at)
        count = self._raw.readinto(memoryview(buffer)[:wanted]) or 0
        self._at += count
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


@dataclass(frozen=True)
class SavedZip:
    """An opened `torch.save` zip file."""

    stream: BinaryIO
    records: Mapping[str, zipfile.ZipInfo]
    length: int

    def check_byte_order(self) -> None:
        """Raises DamagedItem if it was saved on a machine of the other byte order."""
        if "byteorder" in self.records:
            order = bytearray(min(6, self.records["byteorder"].file_size))
            self._fill("byteorder", memoryview(order))
            if bytes(order) == (b"big" if sys.byteorder == "little" else b"little"):
                raise DamagedItem("saved on a machine of the other byte order")

    def structure(self) -> bytes:
        """The pickle of what was saved.

        Raises:
            DamagedItem: it is not there, or larger than is ever read.
        """
        size = self._record(_STRUCTURE).file_size
        if size > _LONGEST_STRUCTURE:
            raise DamagedItem(f"its structure takes {size:,} bytes, more than is ever read")
        content = bytearray(size)
        self._fill(_STRUCTURE, memoryview(content))
        return bytes(content)

    def tensor(self, stored: StoredTensor) -> torch.Tensor:
        """A tensor of it, without its conjugate and negative bits.

        Raises:
            DamagedItem: its bytes are not there, or do not fit its shape.
        """
        record = f"data/{stored.key}"
        size = self._record(record).file_size

        def read(first: int, end: int) -> memoryview:
            content = fresh_buffer(end - first)
            self._fill(record, content, first)
            return content

        try:
            return read_extent(stored, size, read).resolve_conj().resolve_neg()
        except (RuntimeError, ValueError) as error:
            raise DamagedItem(f"its shape does not fit its bytes ({error})") from error

    def fits(self, stored: StoredTensor) -> None:
        """Raises DamagedItem if a tensor's bytes are not within its storage."""
        try:
            extent(stored, self._record(f"data/{stored.key}").file_size)
        except Repeats:
            return
        except ValueError as error:
            raise DamagedItem(f"its shape does not fit its bytes ({error})") from error

    def checked(self) -> Iterator[tuple[str, bool | None]]:
        """Reads every record; whether each fits its CRC-32, None if it has none.

        Raises:
            DamagedItem: a record is not where it should be.
        """
        for name, info in self.records.items():
            found = self._crc(name, info.file_size)
            # a stored CRC of 0 is how torch.save writes that it computed none
            yield name, True if found == info.CRC else (None if info.CRC == 0 else False)

    def _crc(self, name: str, left: int) -> int:
        found = 0
        self.stream.seek(self._start(name))
        with reused_buffer() as block:
            while left:
                count = self._into(block[: min(left, PIECE)])
                if not count:
                    raise DamagedItem(f"record {name} is cut off")
                found, left = crc32(block[:count], found), left - count
        return found

    def _record(self, name: str) -> zipfile.ZipInfo:
        if name not in self.records:
            raise DamagedItem(f"record {name} is missing")
        return self.records[name]

    def _fill(self, name: str, target: memoryview, first: int = 0) -> None:
        self.stream.seek(self._start(name) + first)
        filled = 0
        while filled < len(target):
            count = self._into(target[filled:])
            if not count:
                raise DamagedItem(f"record {name} is cut off")
            filled += count

    def _into(self, target: memoryview) -> int:
        count: int = self.stream.readinto(target)  # type: ignore[attr-defined] # as every file has
        return count

    def _start(self, name: str) -> int:
        info = self._record(name)
        self.stream.seek(info.header_offset)
        lengths = self.stream.read(_HEADER)[_NAME_LENGTHS]
        start = info.header_offset + _HEADER
        start += int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        if start + info.file_size > self.length:
            raise DamagedItem(f"record {name} is not within its item")
        return start


@contextmanager
def opened(source: Source) -> Iterator[SavedZip]:
    """Open a `torch.save` zip file.

    Raises:
        DamagedItem: not one, or not a sound one; also within the block: what reading a damaged
            file raises becomes one.
        ReadFailed: the disk, the network or the memory fails.
    """
    try:
        with source.stream() as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            for info in infos:
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                    raise DamagedItem("compressed, as torch.save never does")
            length = stream.seek(0, io.SEEK_END)
            if sum(info.file_size for info in infos) > length:
                raise DamagedItem("its records are larger than itself")
            records = {info.filename.partition("/")[2]: info for info in infos}
            saved = SavedZip(stream, records, length)
            saved.check_byte_order()
            yield saved
    except DamagedItem:
        raise
    except Exception as error:  # because damaged zip files raise errors of every kind
        if not isinstance(error, FileNotFoundError):
            raise_trouble(error, source.file)
        raise DamagedItem(f"no sound torch.save item ({type(error).__name__})") from error
