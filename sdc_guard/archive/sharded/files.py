"""The files of a sharded checkpoint: writing them as DCP does, and reading them back."""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import xxhash

from ...errors import CheckpointUnreadable
from ...store.atomic import fsync_folder
from ..manifest import FileEntry
from .ack import Written
from .pieces import Piece
from .staging import Staged

METADATA: Final = ".metadata"
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a zip file: lengths of name and of the rest
_ELEMENTS: Final = "/data/0"


def write_pieces(folder: Path, rank: int, pieces: Sequence[Piece], staged: Staged) -> list[Written]:
    """Write pieces to files of this rank, synced; they are read back from there.

    Returns:
        where each lies, with the checksum of what was read.

    Raises:
        OSError, RuntimeError: as the file system or torch gave it.
        CheckpointUnreadable: what was read is no such piece.
    """
    if not pieces:
        return []
    places = _write(folder, rank, pieces, staged)
    fsync_folder(folder)
    by_file: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(places[piece.at][0], []).append(piece)
    found = []
    for name, held in by_file.items():
        content = mapped(folder / name)
        for piece in held:
            _, first, length = places[piece.at]
            found.append(_written(content, piece, name, first, length))
    return found


def mapped(path: Path) -> memoryview:
    """A file's bytes; what is written to them stays in this process.

    Raises:
        OSError: as the file system gave it.
    """
    with path.open("rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (ValueError, AttributeError):  # it is empty, or behind a URL
            return memoryview(bytearray(file.read()))


def elements(content: memoryview, one: Written) -> torch.Tensor:
    """The tensor that a piece is, sharing the memory of its file's bytes."""
    piece = one.piece
    if not piece.numel:
        return torch.empty(piece.sizes, dtype=piece.torch_dtype)
    # by bytes: frombuffer knows fewer dtypes
    raw = torch.frombuffer(content, dtype=torch.uint8, count=piece.bytes, offset=one.data)
    if one.data % piece.torch_dtype.itemsize:
        raw = raw.clone()
    return raw.view(piece.torch_dtype).view(piece.sizes)


def file_entries(folder: Path, names: Iterable[str]) -> list[FileEntry]:
    """Size and checksum of files, read whole."""
    found = []
    for name in names:
        content = mapped(folder / name)
        found.append(FileEntry(name, len(content), checksum(content)))
    return found


def checksum(content: memoryview) -> str:
    """xxh3-128 in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(content)


def write_item(piece: Piece) -> Any:
    """What DCP calls a piece."""
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    if piece.is_value:
        return WriteItem(MetadataIndex(piece.name), WriteItemType.BYTE_IO)
    chunk = ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
    properties = TensorProperties(dtype=piece.torch_dtype)
    data = TensorWriteData(chunk, properties, torch.Size(piece.shape))
    return WriteItem(
        MetadataIndex(piece.name, piece.offsets), WriteItemType.SHARD, tensor_data=data
    )


def write_metadata(
    folder: Path, written: Sequence[Written], paths: Mapping[str, tuple[str | int, ...]]
) -> None:
    """Write `.metadata`, with which DCP itself can load the folder; synced.

    Raises:
        OSError: as the file system gave it.
        ValueError: pieces overlap, or leave a hole.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.storage import WriteResult

    items = [write_item(one.piece) for one in written]
    plan: Any = SavePlan(items, planner_data=dict(paths))
    # of two: it looks for holes only where there are several
    none: Any = SavePlan([], planner_data={})
    _, metadata = DefaultSavePlanner().create_global_plan([plan, none])
    results = [
        WriteResult(
            MetadataIndex(one.piece.name, None if one.piece.is_value else one.piece.offsets),
            one.bytes,
            _StorageInfo(one.file, one.first, one.bytes),
        )
        for one in written
    ]
    writer: Any = FileSystemWriter(folder)
    writer.finish(metadata, [results])


def _write(
    folder: Path, rank: int, pieces: Sequence[Piece], staged: Staged
) -> dict[Any, tuple[str, int, int]]:
    """Where DCP wrote each piece: file, first byte, bytes."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.planner import SavePlan

    class Planner(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
            index = write_item.index
            if index.offset is None:
                buffer = io.BytesIO()
                torch.save(staged.values[index.fqn], buffer)
                return buffer
            return staged.tensors[index.fqn, tuple(index.offset)]

    writer: Any = FileSystemWriter(folder, sync_files=True)
    writer.set_up_storage_writer(rank == 0, rank=rank)
    plan: Any = SavePlan([write_item(piece) for piece in pieces])
    # it names files by a plan's place among the ranks' plans
    plan = writer.prepare_global_plan([SavePlan([])] * rank + [plan])[rank]
    results = writer.write_data(plan, Planner()).value()
    return {
        (one.index.fqn, tuple(one.index.offset or ())): (
            one.storage_data.relative_path, one.storage_data.offset, one.storage_data.length
        )
        for one in results
    }  # fmt: skip


def _written(content: memoryview, piece: Piece, name: str, first: int, length: int) -> Written:
    item = content[first : first + length]
    data = 0 if piece.is_value else first + _data_of(item, piece, name)
    return Written(piece, name, first, length, data, checksum(item))


def _data_of(item: memoryview, piece: Piece, name: str) -> int:
    """The first byte of a tensor's elements in its item.

    What is small in it is read, against the checksums of the zip file.
    """
    try:
        with zipfile.ZipFile(_View(item)) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(_ELEMENTS):
                    archive.read(info)
                    continue
                magic, named, extra = _LOCAL_HEADER.unpack_from(item, info.header_offset)
                if magic != b"PK\x03\x04" or info.file_size != piece.bytes:
                    raise zipfile.BadZipFile(f"{info.file_size:,} bytes of {piece.bytes:,}")
                found = info.header_offset + _LOCAL_HEADER.size + int(named) + int(extra)
                data = found
        return data
    except (zipfile.BadZipFile, struct.error, UnboundLocalError, EOFError) as error:
        raise CheckpointUnreadable(
            f"{piece.name}: read back from {name} it is no tensor ({error})"
        ) from None


class _View(io.RawIOBase):
    """Bytes as a file, without a copy."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._content)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._content) if size < 0 else self._at + size
        found = bytes(self._content[self._at : end])
        self._at += len(found)
        return found
