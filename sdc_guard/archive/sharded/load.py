"""Loading a sharded checkpoint: whole, or into what a rank holds of it, on any number of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from ...errors import CheckpointMismatch
from ..manifest import Manifest
from .flat import Path as Way
from .flat import flattened, nested, place
from .opened import NEXT_STEP, OpenedFolder
from .pieces import given
from .place import Place


def _threads() -> int:
    """That read, prove and copy pieces: as many as cores may be used, 8 at most.

    Hashing and copying let others run, and threads wait together for an archive that is far. On
    two cores that nobody else wanted two loaded in 0.65 of the time of dcp.load, one in 0.95 to
    1.18; on cores that many others wanted, one was the fastest.
    """
    all_cores = os.cpu_count() or 1
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else all_cores
    return max(1, min(8, may_use))


THREADS: Final = _threads()


def load_whole(folder: Path, manifest: Manifest, source: Place | None = None) -> dict[str, Any]:
    """What was given to `guard.checkpoint`, with whole tensors on the CPU.

    Args:
        folder, manifest: of the checkpoint.
        source: where its files are read; from the folder by default.

    Raises:
        CheckpointMismatch, CheckpointUnreadable: bytes are not those that were written.
    """
    opened = OpenedFolder(folder, manifest, source)
    opened.place.ready({one.file for pieces in opened.written.values() for one in pieces})
    names = list(opened.written)
    with ThreadPoolExecutor(THREADS) as pool:
        leaves = dict(zip(names, pool.map(opened.leaf, names), strict=True))
    return nested({name: (opened.paths[name], leaves[name]) for name in names})


def load_into(
    folder: Path, manifest: Manifest, objects: Mapping[str, Any], source: Place | None = None
) -> dict[str, Any]:
    """Load what these objects hold, their shards alone; no collective.

    Args:
        objects: as given to `guard.checkpoint`, by the same names: objects with state_dict() and
            load_state_dict(), or nested containers of tensors, which are written to.
        source: where its files are read; from the folder by default.

    Returns:
        the state dicts by name, and the values that were saved beside them.

    Raises:
        CheckpointMismatch: bytes are not those that were written, or a tensor of the objects is
            not in the checkpoint, or of another shape. Some of them may be loaded by then.
        CheckpointUnreadable: a file is missing or damaged.
    """
    opened = OpenedFolder(folder, manifest, source)
    found: dict[str, Any] = {}
    for name, target in objects.items():
        has_state = hasattr(target, "load_state_dict")
        state = target.state_dict() if has_state else target
        if isinstance(target, torch.optim.Optimizer):
            _make_moments(opened, name, target, state)
        found[name] = _filled(opened, name, state)
        if has_state:
            target.load_state_dict(found[name])
    for name, (one, *_) in opened.written.items():
        way = opened.paths[name]
        if way[0][1] not in objects and one.piece.is_value:
            place(found, way, opened.value(one))
    return found


def _filled(opened: OpenedFolder, name: str, state: Any) -> Any:
    """A state with all tensors written to, and other values replaced."""
    root = {name: state}
    held = given(root)
    boxes = {at: box for at, box in held.pieces.items() if not box.is_value}
    for box in boxes.values():
        pieces = opened.written.get(box.name)
        if not pieces or pieces[0].piece.is_value:
            raise _other(opened, f"{box.name} is not in it")
        if pieces[0].piece.shape != box.shape:
            shapes = f"{list(pieces[0].piece.shape)} there, {list(box.shape)} here"
            raise _other(opened, f"{box.name} has another shape: {shapes}")
    opened.place.ready(opened.files_for(boxes.values()))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda at: opened.fill(held.tensors[at], boxes[at]), boxes))
    for saved, (one, *_) in opened.written.items():
        way = opened.paths[saved]
        if way[0][1] == name and one.piece.is_value:
            place(root, way, opened.value(one))
    return root[name]


def _make_moments(
    opened: OpenedFolder, name: str, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Make room for the state that an optimizer has from its first step on."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    there = flattened({name: state})
    for saved, (one, *_) in opened.written.items():
        number = _parameter_of(opened.paths[saved], name)
        if saved in there or one.piece.is_value or number is None or number >= len(parameters):
            continue
        parameter, dtype = parameters[number].detach(), one.piece.torch_dtype
        if tuple(parameter.shape) == one.piece.shape:  # shared out as the parameter is
            room = torch.zeros_like(parameter, dtype=dtype)
        else:
            room = torch.zeros(one.piece.shape, dtype=dtype)
        if not state["state"]:
            state["state"] = {}
        place({name: state}, opened.paths[saved], room)


def _parameter_of(way: Way, name: str) -> int | None:
    """The number of the parameter whose state lies there."""
    if len(way) < 4 or way[0][1] != name or way[1][1] != "state":
        return None
    return way[2][1] if isinstance(way[2][1], int) else None


def _other(opened: OpenedFolder, told: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the checkpoint is of another model: {told}", where=str(opened.folder), next_step=NEXT_STEP
    )
