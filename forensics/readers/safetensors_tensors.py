"""The tensors of one safetensors file: read when they are asked for, or all to see if they can."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import torch

from sdc_guard.archive.read_trouble import raise_trouble
from sdc_guard.archive.regular_file import open_regular, open_unbuffered
from sdc_guard.archive.reused_buffers import reused_buffer
from sdc_guard.archive.safetensors_forms import torch_form
from sdc_guard.archive.safetensors_header import Entry, Header
from sdc_guard.errors import CheckpointUnreadable

from ..content import Integrity, StoredTensor
from ..locations import is_local
from .findings import as_step

_STEPS: Final = ("step", "global_step")
_NO_ALIAS: Final = frozenset({*_STEPS, "format"})


def tensors(path: Path, header: Header) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Data types of 6 bits, which torch has none for, and any other that this torch lacks, are given
    as uint8 of shape (bytes,): bits can be compared, values cannot. Two elements of 4 bits are one
    of torch's, as the library has it.
    """
    return {entry.name: _stored(path, header.start, entry) for entry in header.entries}


def _stored(path: Path, start: int, entry: Entry) -> StoredTensor:
    dtype, shape = torch_form(entry)
    read = partial(_read, path, start + entry.begin, entry, dtype, shape)
    return StoredTensor(dtype, shape, (path,), read)


def _read(
    path: Path, start: int, entry: Entry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Map it: read into fresh memory it takes several times as long. Writes stay in memory."""
    size = entry.end - entry.begin
    if not size:
        return torch.empty(shape, dtype=dtype)
    if not is_local(path):
        return _fetched(path, start, entry).view(dtype).reshape(shape)
    before = start % mmap.ALLOCATIONGRANULARITY
    try:
        with open_regular(path) as file:
            there = os.fstat(file.fileno()).st_size - start
            if there < size:
                raise _unreadable(path, entry, _short(max(0, there), size))
            content = mmap.mmap(
                file.fileno(), before + size, access=mmap.ACCESS_COPY, offset=start - before
            )
    except OSError as error:
        raise_trouble(error, path, f"tensor {entry.name}")
        raise _unreadable(path, entry, error.strerror or str(error)) from None
    raw = torch.frombuffer(content, dtype=torch.uint8, count=size, offset=before)
    if raw.data_ptr() % dtype.itemsize:  # the format does not promise that tensors are aligned
        raw = raw.clone()
    return raw.view(dtype).reshape(shape)


def _fetched(path: Path, start: int, entry: Entry) -> torch.Tensor:
    """The bytes of a tensor in a file that cannot be mapped, as uint8."""
    content = bytearray(entry.end - entry.begin)
    try:
        with open_regular(path) as file:
            file.seek(start)
            count = file.readinto(content)
    except OSError as error:
        raise_trouble(error, path, f"tensor {entry.name}")
        raise _unreadable(path, entry, error.strerror or str(error)) from None
    if count < len(content):
        raise _unreadable(path, entry, _short(count, len(content)))
    return torch.frombuffer(content, dtype=torch.uint8)


def _unreadable(path: Path, entry: Entry, reason: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"tensor {entry.name} cannot be read: {reason}", where=str(path),
        next_step="use another checkpoint",
    )  # fmt: skip


def _short(found: int, size: int) -> str:
    return f"{found:,} of its {size:,} bytes are there"


def aliases(metadata: Mapping[str, str], names: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Names whose tensor is stored under another, as `save_model` of the library notes it."""
    return {
        name: kept
        for name, kept in metadata.items()
        if kept in names and name not in names and name not in _NO_ALIAS
    }


def texts(metadata: Mapping[str, str], aliases: Mapping[str, str]) -> dict[str, str]:
    """What else was saved beside the tensors, by dotted path."""
    return {f"__metadata__.{key}": text for key, text in metadata.items() if key not in aliases}


def step(metadata: Mapping[str, object]) -> int | None:
    """The step among what was saved beside tensors."""
    found = (as_step(metadata.get(key)) for key in _STEPS)
    return next((one for one in found if one is not None), None)


def check_tensors(path: Path, header: Header) -> Integrity:
    """Read every byte of a file. The format has no checksums: what can be read is `unchecked`.

    So is what a disk or a network fails to give, with the reason in `why`: that shows no damage.

    Raises:
        CheckpointUnreadable: it cannot be opened.
    """
    damaged: dict[str, str] = {}
    unchecked: list[str] = []
    why: dict[str, str] = {}
    try:
        with open_unbuffered(path) as file, reused_buffer() as buffer:
            read = _reading(file, header.start, buffer)
            total = header.start
            for entry in header.entries:
                size = entry.end - entry.begin
                count, error = read(entry.begin, size)
                total += count
                if error:
                    why[entry.name] = error
                elif count < size:
                    damaged[entry.name] = _short(count, size)
                    continue
                unchecked.append(entry.name)
            count, error = read(header.needed, header.trailing)
            if error:
                unchecked.append(path.name)
                why[path.name] = f"bytes after the last tensor: {error}"
    except OSError as error:
        raise CheckpointUnreadable(
            f"cannot be read: {error.strerror or error}", where=str(path)
        ) from None
    return Integrity(damaged, (), tuple(unchecked), total + count, why)


def _reading(
    file: BinaryIO, start: int, buffer: memoryview
) -> Callable[[int, int], tuple[int, str]]:
    """A function that reads so many bytes from a place: how many were there, and the error."""

    def read(at: int, size: int) -> tuple[int, str]:
        done = 0
        try:
            file.seek(start + at)
            while done < size:
                count = file.readinto(buffer[: size - done])  # type: ignore[attr-defined] # because BinaryIO lacks what every binary file has
                if not count:
                    break
                done += count
        except OSError as error:
            return done, f"cannot be read: {error.strerror or error}"
        return done, ""

    return read
