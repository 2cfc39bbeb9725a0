"""Folders of a layout that no reader knows, such as Accelerate's, that a guard has sealed.

Which folder is a checkpoint, its seal beside it says; what is in it, its files do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sdc_guard.archive.sealing.contents import Contents, contents_of
from sdc_guard.archive.sealing.seal_file import SUFFIX, seal_at
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..checkpoint import Checkpoint
from ..content import Content, Integrity, StoredTensor
from .listing import is_folder, names_in
from .reader import Reader

FORMAT: Final = "files"


def find(path: Path) -> list[Checkpoint]:
    """The sealed folder that a path is, or those in it."""
    if not is_folder(path):
        return []
    if one := _sealed(path):
        return [one]
    named = sorted(name for name in names_in(path) if name.endswith(SUFFIX))
    folders = [path / name.removesuffix(SUFFIX) for name in named]
    return [one for folder in folders if is_folder(folder) and (one := _sealed(folder))]


def _sealed(folder: Path) -> Checkpoint | None:
    try:
        seal = seal_at(folder)
    except CheckpointUnreadable:
        return None
    if seal is None or seal.format != FORMAT:
        return None
    return Checkpoint(seal.step, folder, FORMAT, "untested")


def _open(checkpoint: Checkpoint) -> Content:
    """Tensors of the files that are known, after the file's name."""
    found = _contents(checkpoint)
    tensors = {
        name: StoredTensor(held.dtype, held.shape, (checkpoint.path,), held.read)
        for name, held in found.tensors.items()
    }
    unread = {name: f"cannot be read: {why}" for name, why in found.unread.items()}
    return Content(tensors, foreign=unread, step=checkpoint.step)


def _check(checkpoint: Checkpoint) -> Integrity:
    found = _contents(checkpoint)
    damaged, count = dict(found.unread), 0
    intact: list[str] = []
    unchecked: list[str] = []
    why: dict[str, str] = {}
    for name, held in found.tensors.items():
        try:
            sound = held.crc()
            count += held.read().nbytes
        except ReadFailed as error:
            unchecked.append(name)
            why[name] = error.what
            continue
        except CheckpointUnreadable as error:
            damaged[name] = error.what
            continue
        if sound is False:
            damaged[name] = "CRC mismatch"
        else:
            (unchecked if sound is None else intact).append(name)
    return Integrity(damaged, tuple(intact), tuple(unchecked), count, why)


def _contents(checkpoint: Checkpoint) -> Contents:
    return contents_of(checkpoint.path)


READER: Final = Reader(format=FORMAT, find=find, open=_open, check=_check)
