"""Checkpoints of torch.distributed.checkpoint in the form of Hugging Face, in boxes of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch

from sdc_guard.archive.dcp.assembled import Part, assembled
from sdc_guard.archive.dcp.boxes import cover_fault
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..checkpoint import Checkpoint
from ..content import Content, Integrity, StoredTensor
from .dcp_hf_files import (
    SHARDED,
    Box,
    HfFiles,
    read_shards,
    read_whole,
    shard_names,
    whole_names,
)
from .listing import folders_in, names_in
from .reader import Reader
from .step_of import settle, step_in_name

FORMAT = "dcp-hf"
_NEXT_STEP = "it cannot be judged; use another checkpoint"


def find(path: Path) -> list[Checkpoint]:
    """The checkpoints in boxes that a path is, or that lie directly in it.

    What is put together without the boxes beside it is an ordinary checkpoint of safetensors, and
    not found here.
    """
    if shard_names([path.name]) and path.is_file():
        path = path.parent
    if path.name == SHARDED and whole_names(_names(path.parent)):
        path = path.parent
    if _is_hf(path):
        return [_describe(path)]
    return [_describe(folder) for folder in folders_in(path) if _is_hf(folder)]


def open_content(checkpoint: Checkpoint) -> Content:
    """Its tensors: from their boxes where all are there, else as they were put together.

    Putting together makes mistakes of its own: torch 2.13 writes zeros for a tensor without
    dimensions.

    Raises:
        CheckpointUnreadable: no header can be read.
    """
    boxes, whole = _files(checkpoint.path)
    used = whole if _lacks(boxes) and _is_complete(whole, boxes) else boxes
    if not used.boxes:
        reasons = [*boxes.reasons.values()] or ["no tensors there"]
        raise CheckpointUnreadable(reasons[0], where=str(checkpoint.path), next_step=_NEXT_STEP)
    tensors = {name: _stored(checkpoint.path, name, some) for name, some in used.boxes.items()}
    return Content(tensors, step=_step(boxes, whole))


def check(checkpoint: Checkpoint) -> Integrity:
    """Reads every tensor, from its boxes and as it was put together.

    The format keeps no checksum. Where there are both forms, each is one of the other: a tensor
    that is equal in both is `intact`, one that differs `damaged`.

    Raises:
        CheckpointUnreadable: no header can be read.
    """
    boxes, whole = _files(checkpoint.path)
    if not boxes.files and not whole.files:
        open_content(checkpoint)  # raises
    damaged = boxes.reasons | whole.reasons
    intact, unchecked = [], []
    for name in dict.fromkeys([*boxes.boxes, *whole.boxes]):
        forms = [files.boxes[name] for files in (boxes, whole) if name in files.boxes]
        try:
            read = [_read(some) for some in forms]
        except ReadFailed:
            raise
        except CheckpointUnreadable as error:
            damaged[name] = error.what
            continue
        if len(read) == 1:
            unchecked.append(name)
        elif difference := _difference(*read):
            damaged[name] = difference
        else:
            intact.append(name)
    return Integrity(damaged, tuple(intact), tuple(unchecked), boxes.bytes + whole.bytes)


def _describe(folder: Path) -> Checkpoint:
    boxes, whole = _files(folder)
    name = folder.parent.name if folder.name == SHARDED else folder.name
    step = settle(_step(boxes, whole), step_in_name(name))
    complete = _is_complete(whole, boxes)
    reasons = [f"{file}: {reason}" for file, reason in (boxes.reasons | whole.reasons).items()]
    readable = complete or not _lacks(boxes)
    if not complete:
        reasons += _faults(boxes)
    notes = [*step.notes, *boxes.notes, *whole.notes]
    if not whole.boxes:
        notes.append("not put together: that the last rank's shards are there is not to be seen")
    return Checkpoint(
        step.step, folder, FORMAT, "untested", tuple(reasons),
        readable=readable, named_step=step.named_step, notes=tuple(notes),
    )  # fmt: skip


def _files(folder: Path) -> tuple[HfFiles, HfFiles]:
    """Those with boxes, and those that were put together."""
    names = _names(folder)
    own = shard_names(names)
    inner = folder / SHARDED if not own else folder
    boxes = read_shards(inner, own or shard_names(_names(inner)))
    return boxes, read_whole(folder, whole_names(names))


def _is_complete(whole: HfFiles, boxes: HfFiles) -> bool:
    """Whether all was put together."""
    if not whole.boxes or whole.reasons or not whole.boxes.keys() >= boxes.boxes.keys():
        return False
    return all(_within(some, whole.boxes[name]) for name, some in boxes.boxes.items())


def _within(boxes: list[Box], whole: list[Box]) -> bool:
    """Whether boxes can be of a tensor that was put together; some of them may be missing."""
    ends, shape = _shape(boxes), _shape(whole)
    return len(ends) == len(shape) and all(map(int.__le__, ends, shape))


def _lacks(boxes: HfFiles) -> bool:
    """Whether something of the boxes is missing, as far as it can be seen."""
    return not boxes.boxes or bool(boxes.reasons) or bool(_faults(boxes))


def _faults(files: HfFiles) -> list[str]:
    faults = ((name, _fault(some)) for name, some in files.boxes.items())
    return [f"{name}: {fault}" for name, fault in faults if fault][:8]


def _fault(boxes: list[Box]) -> str:
    if len({(box.stored.dtype, len(box.offsets)) for box in boxes}) > 1:
        return "its boxes are of different dtypes or dimensions"
    shape = _shape(boxes)
    held = sum(box.stored.numel for box in boxes)
    if held < math.prod(shape):  # before anything of that size is made
        return f"{math.prod(shape) - held:,} of its {math.prod(shape):,} elements are in no box"
    return cover_fault(shape, [(box.offsets, box.stored.shape) for box in boxes])


def _shape(boxes: Iterable[Box]) -> tuple[int, ...]:
    """Of the whole tensor, which no file says: the least that holds all boxes."""
    return tuple(max(ends) for ends in zip(*(box.end for box in boxes), strict=False))


def _stored(folder: Path, name: str, boxes: list[Box]) -> StoredTensor:
    def read() -> torch.Tensor:
        try:
            return _read(boxes)
        except CheckpointUnreadable as error:
            raise CheckpointUnreadable(
                f"{name} cannot be read: {error.what}", where=str(folder), next_step=_NEXT_STEP
            ) from None

    files = tuple(dict.fromkeys(file for box in boxes for file in box.stored.files))
    return StoredTensor(boxes[0].stored.dtype, _shape(boxes), files, read)


def _read(boxes: list[Box]) -> torch.Tensor:
    if fault := _fault(boxes):
        raise CheckpointUnreadable(fault)
    parts = [Part(box.offsets, box.stored.shape, box.stored.read) for box in boxes]
    try:
        return assembled(boxes[0].stored.dtype, _shape(boxes), parts)
    except (RuntimeError, MemoryError) as error:  # of torch: a dtype that it makes no tensors of
        raise CheckpointUnreadable(f"no such tensor can be made ({type(error).__name__})") from None


def _difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return "dtype or shape differ between its shards and the consolidated file"
    if not one.numel():
        return ""
    both = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other)]
    count = int((both[0] != both[1]).sum())
    if not count:
        return ""
    known = "" if one.dim() or both[1].any() else ", which has zeros: torch 2.13 consolidates so"
    return f"{count:,} bytes differ between its shards and the consolidated file{known}"


def _step(boxes: HfFiles, whole: HfFiles) -> int | None:
    steps = boxes.steps | whole.steps
    return steps.pop() if len(steps) == 1 else None


def _is_hf(folder: Path) -> bool:
    return bool(shard_names(_names(folder)) or shard_names(_names(folder / SHARDED)))


def _names(folder: Path) -> list[str]:
    return list(names_in(folder))


READER = Reader(format=FORMAT, find=find, open=open_content, check=check)
