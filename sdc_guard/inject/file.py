"""Corrupting a file at rest: bytes of it, or elements of a tensor in a checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import torch

from ..archive.torch_places import TensorPlace, tensor_places
from ..errors import CheckpointUnreadable, InjectionError
from .checked import check_fault
from .fault import Draw, Fault, Touched
from .file_record import FileInjection, add_injection, read_injections, write_injections
from .scope import Scope
from .strike import strike


def corrupt_file(path: Path, fault: Fault, seed: int, *, out: Path | None = None) -> FileInjection:
    """Inject a fault of site "file", and keep its ground truth beside the file.

    Without `fault.tensor` its words are the file's bytes, with it the words of that tensor. The
    checksums in the file stay as they are, as they do when a disk or a copy goes wrong.

    Args:
        path: the file.
        seed: of what the fault leaves open.
        out: a copy to write to; None for the file itself.

    Returns:
        what was done; FILE.injected.json has it, too.

    Raises:
        InjectionError: no such file, byte, tensor or element, or what was written does not read
            back.
        CheckpointUnreadable: a tensor was named, and the file is no torch.save zip file.
    """
    check_fault(fault)
    if not path.is_file():
        what = "a folder: name one of its files" if path.is_dir() else "no such file"
        raise InjectionError(what, where=str(path))
    target = path if out is None else out
    if out is not None:
        _copy(path, out)
    try:
        injection = (_bytes_of if fault.tensor is None else _tensor_of)(target, fault, seed)
        _verify(target, injection)
    except (InjectionError, CheckpointUnreadable):
        if out is not None:
            out.unlink()
        raise
    add_injection(target, injection)
    return injection


def revert_file(path: Path) -> tuple[int, list[int]]:
    """Put every byte back that still is what was injected, the newest injection first.

    Returns:
        how many bytes were put back, and the offsets of those that were left alone because they
        have been written to since. The record keeps only the latter's injections.

    Raises:
        InjectionError: there is no record, or it is damaged.
    """
    left: list[FileInjection] = []
    alone: list[int] = []
    back = 0
    injections = read_injections(path)
    with path.open("r+b") as file:
        for injection in reversed(injections):
            others = []
            for byte in injection.bytes:
                file.seek(byte.index)
                if file.read(1) == bytes([byte.after]):
                    file.seek(byte.index)
                    file.write(bytes([byte.before]))
                    back += byte.before != byte.after
                else:
                    others.append(byte.index)
            alone += others
            if others:
                left.append(injection)
        os.fsync(file.fileno())
    write_injections(path, left[::-1])
    return back, sorted(set(alone))


def _copy(path: Path, out: Path) -> None:
    if out.exists():
        raise InjectionError("this is there already", where=str(out), next_step="another output")
    shutil.copyfile(path, out)


def _bytes_of(path: Path, fault: Fault, seed: int) -> FileInjection:
    size = path.stat().st_size
    if not size:
        raise InjectionError("the file is empty", where=str(path))
    content = np.memmap(path, dtype=np.uint8, mode="r+")
    touched = _strike(torch.from_numpy(content), path.name, fault, seed)
    content.flush()
    return FileInjection(seed, fault, None, "uint8", touched, touched)


def _tensor_of(path: Path, fault: Fault, seed: int) -> FileInjection:
    places = tensor_places(path)
    sizes = {name: place.size // place.stored.dtype.itemsize for name, place in places.items()}
    name = Scope("file", sizes, kind="tensor in the file").choose(fault, _draw(fault, seed))
    place = places[name]
    content = np.memmap(path, dtype=np.uint8, mode="r+", offset=place.start, shape=(place.size,))
    before = content.copy()
    stored = place.stored
    words = torch.from_numpy(content).view(stored.dtype)
    tensor = words.as_strided(stored.shape, stored.stride, stored.offset)
    touched = _strike(tensor, name, fault, seed)
    content.flush()
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


def _verify(path: Path, injection: FileInjection) -> None:
    """Read back from the file what was written to it."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        for byte in injection.bytes:
            file.seek(byte.index)
            found = file.read(1)
            if found != bytes([byte.after]):
                raise InjectionError(
                    f"byte {byte.index} reads 0x{found.hex()} after writing 0x{byte.after:02x}",
                    where=str(path),
                )
