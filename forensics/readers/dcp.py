"""Directories of torch.distributed.checkpoint (DCP): `.metadata` beside `__R_N.distcp` shards.

Also those that torchtitan (`step-7/`) and Megatron (`iter_0000007/`, with `common.pt`) write. A
shard is a row of `torch.save` zip files, one an item; `.metadata` says which bytes are which.
"""

from __future__ import annotations

from pathlib import Path

from sdc_guard.archive.dcp.dcp_metadata import FILE, DcpMetadata, read_metadata
from sdc_guard.archive.dcp.dcp_tensors import stored_tensor, tensor_within
from sdc_guard.archive.dcp.dcp_values import found_in, saved_step, steps_differ
from sdc_guard.errors import CheckpointUnreadable, ReadFailed, SdcGuardError

from ..checkpoint import Checkpoint, Status
from ..content import Content, Integrity
from ..unforeseen import unforeseen
from .dcp_check import check_items
from .dcp_shards import left_over, listed, lost, shards, too_new
from .listing import files_in, folders_in
from .reader import Reader
from .step_of import settle, step_in_name

FORMAT = "dcp"
_SHARD = ".distcp"


def find(path: Path) -> list[Checkpoint]:
    """The DCP directories that a path is, or that lie directly in it.

    Reads `.metadata`, the shards' sizes and times, and the items that say the step.
    """
    if path.name == FILE or path.suffix == _SHARD:
        path = path.parent
    if _is_dcp(path):
        return [_describe(path)]
    return [_describe(folder) for folder in folders_in(path) if _is_dcp(folder)]


def open_content(checkpoint: Checkpoint) -> Content:
    """Its tensors, each read when it is asked for, and what is no tensor.

    Raises:
        CheckpointUnreadable: no `.metadata`, or a damaged one.
    """
    folder = checkpoint.path
    metadata = read_metadata(folder)
    found = found_in(folder, metadata)
    tensors = {
        name: stored_tensor(folder, name, item)
        for name, item in metadata.tensors.items()
        if not item.foreign
    }
    quantized = {name: item.foreign for name, item in metadata.tensors.items() if item.foreign}
    for name, (source, stub) in found.tensors.items():
        tensors.setdefault(name, tensor_within(source, folder, name, stub))
    return Content(
        tensors,
        numbers=found.numbers,
        foreign=quantized | found.foreign,
        step=saved_step(folder, metadata),
    )


def check(checkpoint: Checkpoint) -> Integrity:
    """Reads every item against its CRC-32s, its metadata and the other chunks of its tensor.

    Raises:
        CheckpointUnreadable: no `.metadata`, or a damaged one: what belongs where is not known.
    """
    return check_items(checkpoint.path, read_metadata(checkpoint.path, compared=True))


def _is_dcp(folder: Path) -> bool:
    names = files_in(folder)
    return FILE in names or any(name.endswith(_SHARD) for name in names)


def _describe(folder: Path) -> Checkpoint:
    try:
        return _described(folder)
    except ReadFailed as error:
        return _unreadable(folder, None, [error.what])
    except (SdcGuardError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - because one nobody foresaw must not hide the others
        return _unreadable(folder, None, [unforeseen(error, "reading")])


def _described(folder: Path) -> Checkpoint:
    try:
        metadata = read_metadata(folder)
    except CheckpointUnreadable as error:
        return _unreadable(folder, None, [_incomplete(folder) or error.what])
    found = shards(folder, metadata)
    whole = [shard.name for shard in found if shard.whole]
    inner = saved_step(folder, metadata)
    losses = [lost(folder, shard, metadata) for shard in found if not shard.whole]
    if losses:
        return _unreadable(folder, inner, [f"unreadable: {loss}" for loss in losses])
    if transformed := _transformed(metadata):
        return _unreadable(folder, inner, [transformed])
    doubts = [too_new(folder, found), steps_differ(folder, metadata, whole)]
    reasons = tuple(doubt for doubt in doubts if doubt)
    status: Status = "suspect" if reasons else "untested"
    step = settle(inner, step_in_name(folder.name))
    notes = (*step.notes, *left_over(folder, found))
    return Checkpoint(
        step.step, folder, FORMAT, status, reasons, named_step=step.named_step, notes=notes
    )


def _unreadable(folder: Path, inner: int | None, reasons: list[str]) -> Checkpoint:
    step = settle(inner, step_in_name(folder.name))
    return Checkpoint(
        step.step, folder, FORMAT, "untested", tuple(reasons),
        readable=False, named_step=step.named_step, notes=step.notes,
    )  # fmt: skip


def _incomplete(folder: Path) -> str:
    """What a directory without `.metadata` lacks; "" if it has one."""
    if (folder / FILE).exists():
        return ""
    names = sorted(files_in(folder))
    by_rank = [name for name in names if name.startswith("__") and name.endswith(FILE)]
    if by_rank:
        return f"each rank saved by itself, which is not readable: found {listed(by_rank)}"
    found = listed(name for name in names if name.endswith(_SHARD))
    cut = "; .metadata.tmp is there: the save did not end" if ".metadata.tmp" in names else ""
    return f"DCP directory incomplete: {FILE} missing; found {found}{cut}"


def _transformed(metadata: DcpMetadata) -> str:
    through = {word: None for _, place in metadata.places() for word in place.transformed}
    if not through:
        return ""
    return f"unreadable: its items went through {listed(through)}, an extension of the writer"


READER = Reader(format=FORMAT, find=find, open=open_content, check=check)
