"""Files that `torch.save` wrote before 1.6, and on request still writes.

Five pickles, then the storages one after the other, each after its number of elements:
magic number, version of the protocol, the writer's byte order, what was saved, and the keys of the
storages in the order in which they follow. There are no checksums.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import torch

from sdc_guard.archive.extent import Repeats, extent, read_extent
from sdc_guard.archive.inert_pickle import MOST_BYTES, InertUnpickler, Storage, storage_key
from sdc_guard.archive.inert_pickle import StoredTensor as Described
from sdc_guard.archive.read_trouble import raise_trouble
from sdc_guard.archive.regular_file import open_regular, open_unbuffered
from sdc_guard.archive.torch_damage import LEGACY, head_of
from sdc_guard.archive.torch_records import CHUNK, NEXT_STEP
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content, Integrity
from .described import content_of, described, take_stock
from .reader import Reader

FORMAT: Final = "torch-legacy"
_FIRST_READ: Final = 64 * 2**10
_VERSION: Final = 1001  # of the protocol: there was no other
_COUNT: Final = 8  # bytes of a storage's number of elements


@dataclass(frozen=True)
class _Layout:
    """Where things lie in a file.

    Attributes:
        root: what was saved.
        described: bytes of the pickles that say it.
        storages: first byte of each storage, and how many bytes it has, by key.
        end: bytes that the file should have.
        size: bytes that it has.
    """

    root: Any
    described: int
    storages: dict[str, tuple[int, int]]
    end: int
    size: int


def find(path: Path) -> list[Checkpoint]:
    """The files of this format in a folder, or the one that `path` is."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [describe(x, FORMAT) for x in files if x.is_file() and head_of(x).startswith(LEGACY)]


def describe(file: Path, format: str) -> Checkpoint:
    """A file as a checkpoint; its tensors are not read."""
    layouts: list[_Layout] = []

    def opened(file: Path) -> Content:
        layouts.append(_layout(file))
        return _content(file, layouts[0])

    found = described(file, format, opened)
    extra = layouts[0].size - layouts[0].end if layouts else 0
    if not extra:
        return found
    return replace(found, notes=(*found.notes, f"{extra:,} bytes follow its last tensor"))


def open_file(file: Path) -> Content:
    """What a file holds, lazily.

    Raises:
        CheckpointUnreadable: it is truncated, damaged, or none.
    """
    return _content(file, _layout(file))


def check_file(file: Path) -> Integrity:
    """Read every byte; there are no checksums to compare them with.

    Raises:
        CheckpointUnreadable: nothing of it can be read.
    """
    layout = _layout(file)
    found = take_stock(file, layout.root, layout.described)
    damaged, why = {}, {}
    for name, stored in found.tensors.items():
        try:
            extent(stored, layout.storages.get(stored.key, (0, 0))[1])
        except Repeats as error:
            why[name] = f"{error} (storage {stored.key})"
        except ValueError as error:
            damaged[name] = f"{error} (storage {stored.key})"
    try:
        with open_unbuffered(file) as content:
            size = sum(len(piece) for piece in iter(partial(content.read, CHUNK), b""))
    except OSError as error:
        raise _unreadable(file, f"{error.strerror}") from None
    unchecked = tuple(name for name in found.tensors if name not in damaged)
    return Integrity(damaged, (), unchecked, size, why, found.foreign_tensors)


def _content(file: Path, layout: _Layout) -> Content:
    return content_of(
        file, take_stock(file, layout.root, layout.described), partial(_read, file, layout)
    )


def _read(file: Path, layout: _Layout, stored: Described) -> torch.Tensor:
    try:
        start, size = layout.storages[stored.key]
        return read_extent(stored, size, partial(_bytes, file, start))
    except Exception as error:  # noqa: BLE001 - because damaged files raise errors of every kind
        raise_trouble(error, file, f"storage {stored.key}")
        raise _unreadable(file, f"storage {stored.key}: {error}") from None


def _bytes(file: Path, start: int, first: int, end: int) -> bytearray:
    buffer = bytearray(end - first)
    with open_regular(file) as content:
        content.seek(start + first)
        if content.readinto(buffer) < len(buffer):
            raise EOFError("bytes are missing at the end of the file")
    return buffer


def _layout(file: Path) -> _Layout:
    try:
        size = file.stat().st_size
        root, keys, machine = _pickles(file, size)
        with open_regular(file) as content:
            storages, end = _storages(content, keys, machine.storages, machine.at)
    except CheckpointUnreadable:
        raise
    except OSError as error:
        raise _unreadable(file, f"{error.strerror}") from None
    except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
        raise_trouble(error, file)
        raise _unreadable(
            file, f"the structure of the file is damaged ({type(error).__name__}: {error})"
        ) from None
    if size < end:
        raise _unreadable(file, f"truncated ({size:,} of {end:,} bytes)")
    return _Layout(root, machine.at, storages, end, size)


def _pickles(file: Path, size: int) -> tuple[Any, list[str], InertUnpickler]:
    """What was saved, the keys of its storages, and the machine, which stands after them."""
    read = _FIRST_READ
    while True:
        head = head_of(file, read)
        try:
            return _loaded(file, head)
        except CheckpointUnreadable:
            raise
        except Exception as error:  # because cut pickles raise errors of every kind
            raise_trouble(error, file)
            if read < min(size, MOST_BYTES):
                read *= 8
            elif size > MOST_BYTES:
                raise _unreadable(
                    file, f"no end of its structure in {MOST_BYTES:,} bytes"
                ) from None
            elif isinstance(error, EOFError):
                raise _unreadable(file, f"truncated at {size:,} bytes, in its structure") from None
            else:
                raise


def _loaded(file: Path, head: bytes) -> tuple[Any, list[str], InertUnpickler]:
    machine = InertUnpickler(head, len(LEGACY))
    version = machine.load()
    about = machine.load()
    if isinstance(about, dict) and about.get("little_endian", True) != (sys.byteorder == "little"):
        raise _unreadable(file, "saved on a machine of the other byte order")
    if version != _VERSION:
        raise ValueError(f"version {version}")
    root = machine.load()
    keys = machine.load()
    if not isinstance(keys, list):
        raise TypeError("its list of storages is none")
    return root, [storage_key(key) for key in keys], machine


def _storages(
    content: IO[bytes], keys: list[str], known: dict[str, Storage], start: int
) -> tuple[dict[str, tuple[int, int]], int]:
    """Where each storage lies, and where the last one ends, as far as their counts can be read."""
    found: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = known[key]
        if storage.numel < 0:
            raise ValueError(f"storage {key} has {storage.numel:,} elements")
        content.seek(start)
        count = content.read(_COUNT)
        if len(count) == _COUNT and int.from_bytes(count, "little") != storage.numel:
            written = int.from_bytes(count, "little")
            raise ValueError(f"storage {key} has {written:,} elements, not {storage.numel:,}")
        size = storage.numel * storage.dtype.itemsize
        found[key] = (start + _COUNT, size)
        start += _COUNT + size
    return found, start


def _unreadable(file: Path, what: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"unreadable: {what}", where=str(file), next_step=NEXT_STEP)


READER: Final = Reader(
    format=FORMAT,
    find=find,
    open=lambda checkpoint: open_file(checkpoint.path),
    check=lambda checkpoint: check_file(checkpoint.path),
)
