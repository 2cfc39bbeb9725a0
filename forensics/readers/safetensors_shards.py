"""Safetensors in shards, with the index that `save_pretrained` writes, or without one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sdc_guard.archive.safetensors_header import read_header
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..checkpoint import Checkpoint
from ..content import Content, Integrity, StoredTensor
from .hf_layout import is_trainer_folder
from .listing import is_file, is_folder, names_in
from .reader import Reader
from .safetensors_index import ShardSet, sets_in
from .safetensors_tensors import aliases, check_tensors, tensors, texts
from .shard_agreement import describe_set, headers_of, step_of

FORMAT: Final = "safetensors-sharded"
_MOST: Final = 3  # reasons in a line


def find(path: Path) -> list[Checkpoint]:
    """The shards whose index `path` is, those in it, or those in the folders in it."""
    if is_file(path):
        own = [one for one in sets_in(path.parent) if one.index == path.name]
        return [_checkpoint(one, path) for one in own]
    if not is_folder(path) or is_trainer_folder(path):
        return []
    sets = _sets_of(path)
    if not sets:
        inner = (path / name for name in sorted(names_in(path)))
        folders = [one for one in inner if is_folder(one) and not is_trainer_folder(one)]
        sets = [one for folder in folders for one in _sets_of(folder)]
    return [_checkpoint(one, place) for one, place in sets]


def _sets_of(folder: Path) -> list[tuple[ShardSet, Path]]:
    """The sets in a folder, each with a path that it is found by again."""
    sets = sets_in(folder)
    if len(sets) == 1:
        return [(sets[0], folder)]
    return [(one, folder / (one.index or one.files[0])) for one in sets]


def set_at(path: Path) -> ShardSet:
    """The set that a folder holds, or that an index or a shard belongs to.

    Raises:
        CheckpointUnreadable: there is none.
    """
    sets = sets_in(path if is_folder(path) else path.parent)
    if not is_folder(path):
        sets = [one for one in sets if path.name == one.index or path.name in one.files]
    if not sets:
        raise CheckpointUnreadable("no shards of safetensors there", where=str(path))
    return sets[0]


def _checkpoint(shards: ShardSet, path: Path) -> Checkpoint:
    return describe_set(shards).checkpoint(path, FORMAT, shards.stem, shards.folder.name)


def open_set(shards: ShardSet) -> Content:
    """What the shards that can be read hold.

    A tensor of several shards is read from the one that the index names.

    Raises:
        CheckpointUnreadable: there is no tensor in any of them.
    """
    headers, unreadable = headers_of(shards)
    found: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    for file, header in headers.items():
        metadata |= header.metadata
        for name, tensor in tensors(shards.folder / file, header).items():
            if shards.placed.get(name, file) == file:
                found.setdefault(name, tensor)
    if not found:
        reasons = [*shards.reasons, *unreadable, *(f"{one} missing" for one in shards.missing)]
        raise CheckpointUnreadable(
            "; ".join(reasons[:_MOST]) or "no tensors in file", where=str(shards.folder)
        )
    other = aliases(metadata, found)
    return Content(found, other, texts(metadata, other), step=step_of(shards, headers))


def check_set(shards: ShardSet) -> Integrity:
    """Read every byte of the shards; those that are missing are damage.

    Raises:
        CheckpointUnreadable: nothing of them can be read.
    """
    damaged = dict.fromkeys(shards.missing, "missing")
    unchecked: dict[str, None] = {}
    why: dict[str, str] = {}
    total = 0
    for name in shards.files:
        try:
            one = check_tensors(shards.folder / name, read_header(shards.folder / name))
        except ReadFailed:
            raise
        except CheckpointUnreadable as error:
            damaged[name] = damaged.get(name, error.what)
            continue
        damaged |= one.damaged
        unchecked |= dict.fromkeys(one.unchecked)
        why |= one.why
        total += one.bytes
    if not total:
        raise CheckpointUnreadable("none of the shards can be read", where=str(shards.folder))
    for tensor, file in shards.placed.items():
        if file in damaged:
            damaged[tensor] = f"its shard {file} cannot be read"
        elif tensor not in damaged and tensor not in unchecked:
            damaged[tensor] = f"not in its shard {file}"
    intact = tuple(name for name in unchecked if name not in damaged)
    return Integrity(damaged, (), intact, total, why)


def _open(checkpoint: Checkpoint) -> Content:
    return open_set(set_at(checkpoint.path))


def _check(checkpoint: Checkpoint) -> Integrity:
    return check_set(set_at(checkpoint.path))


READER: Final = Reader(format=FORMAT, find=find, open=_open, check=_check)
