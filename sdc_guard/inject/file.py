"""Corrupting a file at rest: bytes of it, or elements of a tensor in a checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ..archive.torch_places import TensorPlace, tensor_places
from ..errors import InjectionError
from ..store.atomic import publish
from .checked import check_fault
from .fault import Draw, Fault, Touched
from .file_record import (
    FileInjection,
    read_injections,
    record_of,
    write_injections,
)
from .scope import Scope
from .strike import strike


def corrupt_file(path: Path, fault: Fault, seed: int, *, out: Path | None = None) -> FileInjection:
    """Inject a fault of site "file", and keep its ground truth beside the file.

    Without `fault.tensor` its elements are the file's bytes, with it those of that tensor. The
    checksums in the file stay as they are, as they do when a disk or a copy goes wrong.

    The record is there before the file is touched: no byte ever is wrong without one.

    Args:
        path: the file.
        seed: of what the fault leaves open.
        out: a copy to write to; None for the file itself.

    Returns:
        what was done; FILE.injected.json has it, too.

    Raises:
        InjectionError: no such file, byte, tensor or element, file or record cannot be written,
            or what was written does not read back. The file is as it was then.
        CheckpointUnreadable: a tensor was named, and the file is no torch.save zip file.
    """
    check_fault(fault)
    if not path.is_file():
        what = "a folder: name one of its files" if path.is_dir() else "no such file"
        raise InjectionError(what, where=str(path))
    target = path if out is None else out
    with _said_of(path, "read"):
        earlier = _earlier(path) if out is None else _none_of(out)
        injection = (_bytes_of if fault.tensor is None else _tensor_of)(path, fault, seed)
    with _said_of(target):
        write_injections(target, [*earlier, injection])
        try:
            if out is None:
                _write(path, [(byte.index, byte.after) for byte in injection.bytes])
            else:
                publish(out, lambda copy: _write_copy(path, copy, injection), replace=False)
        except (OSError, InjectionError):
            if out is None:
                _undo(path, injection)
            write_injections(target, earlier)
            raise
    return injection


def revert_file(path: Path) -> tuple[int, list[int]]:
    """Put every byte back that still is what was injected, the newest injection first.

    Returns:
        how many bytes were put back, and the offsets of those that were left alone because they
        have been written to since. The record keeps only the latter's injections.

    Raises:
        InjectionError: there is no record, it is damaged, or file or record cannot be written.
    """
    left: list[FileInjection] = []
    alone: list[int] = []
    back = 0
    injections = read_injections(path)
    with _said_of(path), path.open("r+b") as file:
        for injection in reversed(injections):
            others = []
            for byte in injection.bytes:
                file.seek(byte.index)
                found = file.read(1)
                if found == bytes([byte.after]):
                    file.seek(byte.index)
                    file.write(bytes([byte.before]))
                    back += byte.before != byte.after
                elif found != bytes([byte.before]):  # else a killed process never wrote it
                    others.append(byte.index)
            alone += others
            if others:
                left.append(injection)
        file.flush()
        os.fsync(file.fileno())
        write_injections(path, left[::-1])
    return back, sorted(set(alone))


def _earlier(path: Path) -> list[FileInjection]:
    return read_injections(path) if record_of(path).exists() else []


def _none_of(out: Path) -> list[FileInjection]:
    """Refuse a copy in the place of another, or one that would take over another's record."""
    for there in (out, record_of(out)):
        if there.exists() or there.is_symlink():
            raise InjectionError(
                "this is there already", where=str(there), next_step="another output"
            )
    return []


@contextmanager
def _said_of(path: Path, done: str = "written") -> Iterator[None]:
    """Within it, what the file system refuses is said of this file."""
    try:
        yield
    except OSError as error:
        raise InjectionError(
            f"the file or its record cannot be {done}: {error.strerror or error}", where=str(path)
        ) from None


def _bytes_of(path: Path, fault: Fault, seed: int) -> FileInjection:
    if not path.stat().st_size:
        raise InjectionError("the file is empty", where=str(path))
    content = np.memmap(path, dtype=np.uint8, mode="c")  # what is written stays in memory
    touched = _strike(torch.from_numpy(content), path.name, fault, seed)
    return FileInjection(seed, fault, None, "uint8", touched, touched)


def _tensor_of(path: Path, fault: Fault, seed: int) -> FileInjection:
    places = tensor_places(path)
    sizes = {name: place.size // place.stored.dtype.itemsize for name, place in places.items()}
    name = Scope("file", sizes, kind="tensor in the file").choose(fault, _draw(fault, seed))
    place = places[name]
    if not place.size:
        raise InjectionError(f"{name} has no element", where=str(path))
    before, content = (
        np.memmap(path, dtype=np.uint8, mode=mode, offset=place.start, shape=(place.size,))
        for mode in ("r", "c")
    )
    stored = place.stored
    words = torch.from_numpy(content).view(stored.dtype)
    tensor = words.as_strided(stored.shape, stored.stride, stored.offset)
    touched = _strike(tensor, name, fault, seed)
    return FileInjection(
        seed, fault, name, str(stored.dtype).removeprefix("torch."), touched,
        _bytes_that_differ(before, content, place),
    )  # fmt: skip


def _bytes_that_differ(
    before: np.ndarray, after: np.ndarray, place: TensorPlace
) -> tuple[Touched, ...]:
    return tuple(
        Touched(place.start + int(at), int(before[at]), int(after[at]))
        for at in np.flatnonzero(before != after)
    )


def _draw(fault: Fault, seed: int) -> Draw:
    return Draw(seed, "file", fault.step, 0)


def _strike(tensor: torch.Tensor, name: str, fault: Fault, seed: int) -> tuple[Touched, ...]:
    struck = strike(
        tensor, name, fault, _draw(fault, seed), number=0, step=fault.step, backend="", note=""
    )
    return () if struck is None else struck.touched()


def _write_copy(path: Path, copy: Path, injection: FileInjection) -> None:
    shutil.copyfile(path, copy)
    _write(copy, [(byte.index, byte.after) for byte in injection.bytes])


def _undo(path: Path, injection: FileInjection) -> None:
    try:
        _write(path, [(byte.index, byte.before) for byte in injection.bytes])
    except (OSError, InjectionError):
        raise InjectionError(
            "the injection failed half-way", where=str(path), next_step="its record tells: --revert"
        ) from None


def _write(path: Path, content: list[tuple[int, int]]) -> None:
    """Write bytes, and read them back from the file."""
    with path.open("r+b") as file:
        for index, byte in content:
            file.seek(index)
            file.write(bytes([byte]))
        file.flush()
        os.fsync(file.fileno())
        for index, byte in content:
            file.seek(index)
            found = file.read(1)
            if found != bytes([byte]):
                raise InjectionError(
                    f"byte {index} reads 0x{found.hex()} after writing 0x{byte:02x}",
                    where=str(path),
                )
