"""The records of a `torch.save` zip file: where they lie, and what their checksums are."""

from __future__ import annotations

import copy
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final

from ..digest.crc32 import crc32
from ..errors import CheckpointUnreadable, ReadFailed
from .inert_pickle import MOST_BYTES, InertUnpickler, Storage
from .read_trouble import raise_trouble
from .regular_file import open_regular, open_unbuffered
from .reused_buffers import PIECE, fresh_buffer, reused_buffer
from .torch_damage import why_unreadable

STRUCTURE: Final = "data.pkl"
CHUNK: Final = 4 * 2**20
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip file: lengths of the name and of what follows
_LOCAL_MAGIC = b"PK\x03\x04"
_MOST_DEFLATED: Final = 1032  # to 1: no deflated stream shrinks by more
_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
NEXT_STEP: Final = "it cannot be judged; use another checkpoint"


@dataclass(frozen=True)
class TorchRecords:
    """The directory of a file.

    Attributes:
        path: the file.
        records: name, without the folder that all share, to the zip file's entry.
    """

    path: Path
    records: dict[str, zipfile.ZipInfo]

    def start(self, name: str) -> int:
        """The first byte of a stored record in the file.

        Raises:
            KeyError: no such record.
            BadZipFile: its own header is damaged, or of another record.
        """
        with open_regular(self.path) as file:
            return _start(file, self.records[name])

    def chunks(self, name: str, first: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """The bytes [first, end) of a record, in pieces that are valid until the next one.

        Raises:
            KeyError, BadZipFile, OSError, zlib.error, EOFError: they are not all there.
        """
        info = self.records[name]
        end = info.file_size if end is None else end
        if not 0 <= first <= end <= info.file_size:
            raise zipfile.BadZipFile(f"bytes {first:,} to {end:,} of {info.file_size:,}")
        if info.compress_type == zipfile.ZIP_STORED:
            yield from self._plain(name, first, end)
        else:
            yield from self._packed(info, first, end)

    def _plain(self, name: str, first: int, end: int) -> Iterator[memoryview]:
        with self._opened(name, first) as file, reused_buffer() as buffer:
            left = end - first
            while left:
                count = file.readinto(buffer[: min(left, PIECE)])
                if not count:
                    raise zipfile.BadZipFile(f"{left:,} bytes are missing at the end")
                yield buffer[:count]
                left -= count

    def _opened(self, name: str, first: int) -> FileIO:
        """The file at the byte `first` of a stored record."""
        file = open_unbuffered(self.path)
        try:
            file.seek(_start(file, self.records[name]) + first)
        except BaseException:
            file.close()
            raise
        return file

    def _packed(self, info: zipfile.ZipInfo, first: int, end: int) -> Iterator[memoryview]:
        """torch.save compresses nothing; who packs a file again may."""
        _fits(info)
        with (
            open_regular(self.path) as whole,
            zipfile.ZipFile(whole) as archive,
            archive.open(_without_crc(info)) as file,
        ):
            at = 0
            while at < end:
                piece = file.read(min(CHUNK, end - at))
                if not piece:
                    raise zipfile.BadZipFile(f"{end - at:,} bytes are missing at the end")
                at += len(piece)
                if at > first:
                    yield memoryview(piece)[max(0, first - (at - len(piece))) :]

    def read(self, name: str, first: int = 0, end: int | None = None) -> memoryview:
        """The bytes [first, end) of a record, in memory of their own that may be written to.

        Raises: as `chunks`.
        """
        info = self.records[name]
        end = info.file_size if end is None else end
        if info.compress_type == zipfile.ZIP_STORED and 0 <= first < end <= info.file_size:
            return self._read_plain(name, first, end)
        _fits(info)  # a damaged directory may claim more than any memory holds
        content = fresh_buffer(max(0, end - first))
        at = 0
        for piece in self.chunks(name, first, end):
            content[at : at + len(piece)] = piece
            at += len(piece)
        return content

    def _read_plain(self, name: str, first: int, end: int) -> memoryview:
        """Straight to where the bytes stay."""
        with self._opened(name, first) as file:
            place = file.tell()
            # a damaged directory may claim more than any memory holds
            if place + end - first > file.seek(0, 2):
                raise zipfile.BadZipFile(f"bytes {first:,} to {end:,} are not all in the file")
            file.seek(place)
            content, at = fresh_buffer(end - first), 0
            while at < len(content):
                count = file.readinto(content[at:])
                if not count:
                    raise zipfile.BadZipFile(f"{len(content) - at:,} bytes are missing at the end")
                at += count
        return content

    def sound(self, name: str) -> bool | None:
        """Whether a record's bytes fit its CRC-32; None if the file keeps none: a CRC of 0.

        Raises: as `chunks`.
        """
        found = 0
        for piece in self.chunks(name):
            found = crc32(piece, found)
        expected = self.records[name].CRC
        return None if expected == 0 and found != 0 else found == expected


def _fits(info: zipfile.ZipInfo) -> None:
    """Raises BadZipFile if a record's bytes cannot unpack to as many as it claims."""
    if info.file_size > _MOST_DEFLATED * max(1, info.compress_size):
        raise zipfile.BadZipFile(f"{info.compress_size:,} bytes cannot hold {info.file_size:,}")


def _start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """The first byte of a record's content."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile("its header is past the end of the file")
    magic, length, extra = _LOCAL_HEADER.unpack(header)
    written = file.read(length)
    if magic != _LOCAL_MAGIC or written != info.orig_filename.encode():
        raise zipfile.BadZipFile("the header before it is damaged")
    return info.header_offset + _LOCAL_HEADER.size + int(length) + int(extra)


@dataclass(frozen=True)
class TorchStructure:
    """What a file's pickle describes.

    Attributes:
        root: containers, plain data, stored tensors and placeholders.
        storages: by key.
        sound: whether the pickle fits its CRC-32; None if there is none.
        size: bytes of the pickle.
    """

    root: Any
    storages: dict[str, Storage]
    sound: bool | None
    size: int


def torch_records(path: Path) -> TorchRecords:
    """The directory of a zip-format `torch.save` file.

    Raises:
        CheckpointUnreadable: missing, empty, truncated, or not such a file.
    """
    try:
        size = path.stat().st_size
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            records = {
                info.filename.split("/", 1)[-1]: info
                for info in archive.infolist()
                if not info.is_dir()
            }
        if sum(info.compress_size for info in records.values()) > size:
            raise zipfile.BadZipFile("its records overlap")
    except Exception as error:  # noqa: BLE001 - because damaged zip files raise errors of every kind
        if isinstance(error, PermissionError):
            what = why_unreadable(path, error)
            raise ReadFailed(what, where=str(path), next_step=NEXT_STEP) from None
        if not isinstance(error, _NO_FILE):
            raise_trouble(error, path)
        raise CheckpointUnreadable(
            why_unreadable(path, error), where=str(path), next_step=NEXT_STEP
        ) from None
    if STRUCTURE not in records:
        raise CheckpointUnreadable("not a torch.save file: no data.pkl inside", where=str(path))
    return TorchRecords(path, records)


def torch_structure(found: TorchRecords) -> TorchStructure:
    """What a file holds, without its tensors; nothing of it is run.

    Raises:
        CheckpointUnreadable: damaged, larger than is read, or of the other byte order.
    """
    try:
        order = bytes(found.read("byteorder", 0, None)) if _has_order(found) else b""
        info = found.records[STRUCTURE]
        if info.file_size > MOST_BYTES:
            raise CheckpointUnreadable(
                f"unreadable: its structure alone has {info.file_size:,} bytes, "
                f"more than the {MOST_BYTES:,} that are read",
                where=str(found.path),
            )
        content = bytes(found.read(STRUCTURE))
        machine = InertUnpickler(content)
        root = machine.load()
    except CheckpointUnreadable:
        raise
    except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
        raise_trouble(error, found.path)
        raise CheckpointUnreadable(
            f"unreadable: the structure of the file is damaged ({type(error).__name__})",
            where=str(found.path),
            next_step=NEXT_STEP,
        ) from None
    if order not in (b"", sys.byteorder.encode()):
        raise CheckpointUnreadable(
            "saved on a machine of the other byte order", where=str(found.path)
        )
    crc = zlib.crc32(content)
    sound = None if info.CRC == 0 and crc != 0 else crc == info.CRC
    return TorchStructure(root, machine.storages, sound, len(content))


def _has_order(found: TorchRecords) -> bool:
    return "byteorder" in found.records and found.records["byteorder"].file_size < 100


def _without_crc(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """zipfile then leaves the comparison to us: damaged bytes are wanted too."""
    other = copy.copy(info)
    del other.CRC
    return other
