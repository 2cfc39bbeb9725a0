"""The weights of a stored checkpoint, on the way into a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointUnreadable
from ..manifest import SHARDED, Manifest
from ..sharded.flat import nested
from ..sharded.opened import OpenedFolder
from .choose import weights_in


def stored_weights(folder: Path, manifest: Manifest) -> dict[Any, Any]:
    """The weights of a checkpoint and its `step`, nested as they were saved, on the CPU.

    Of one file they are mapped, and read when they are written; of several ranks' files whole
    tensors are put together, in memory. What they are is not compared here.

    Raises:
        CheckpointUnreadable, CheckpointMismatch: a file is missing or damaged, or it holds no
            parameter that is known.
    """
    if manifest.format == SHARDED:
        opened, described = _of_ranks(folder, manifest)
        found = {key: _filled(value, opened) for key, value in described.items()}
    else:
        found = {key: _own(value) for key, value in _of_file(folder, manifest).items()}
    if not found:
        raise CheckpointUnreadable(
            "no tensor of it is known to be a parameter", where=str(folder), next_step="keep it"
        )
    return {**found, "step": manifest.step}


def bytes_of_weights(folder: Path, manifest: Manifest) -> int:
    """How many bytes the weights of a checkpoint have; none of them is read.

    Raises: as `stored_weights`; 0 where no parameter is known.
    """
    if manifest.format == SHARDED:
        _, described = _of_ranks(folder, manifest)
        return sum(one.numel() * one.element_size() for one in _tensors(described))
    sizes: dict[int, int] = {}  # by storage: tied weights are stored once
    for one in _tensors(_of_file(folder, manifest)):
        place = one.untyped_storage().data_ptr() if one.layout == torch.strided else id(one)
        sizes[place] = max(sizes.get(place, 0), one.numel() * one.element_size())
    return sum(sizes.values())


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    """Those of a structure."""
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, (Mapping, list)):
        for one in node.values() if isinstance(node, Mapping) else node:
            yield from _tensors(one)


def _of_file(folder: Path, manifest: Manifest) -> dict[Any, Any]:
    path = folder / manifest.file
    try:
        payload = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # noqa: BLE001 - because torch.load raises errors of every kind
        told = str(error).strip().splitlines()
        why = told[0] if told else type(error).__name__
        raise CheckpointUnreadable(
            f"torch.load(weights_only=True) refuses it: {why}", where=str(path)
        ) from None
    return weights_in(payload, manifest.tensors) if isinstance(payload, Mapping) else {}


def _of_ranks(folder: Path, manifest: Manifest) -> tuple[OpenedFolder, dict[Any, Any]]:
    """What a copy will hold, with what stands for tensors and values."""
    opened = OpenedFolder(folder, manifest)
    leaves: dict[str, tuple[Any, Any]] = {}
    for name, (one, *_) in opened.written.items():
        piece = one.piece
        stands: Any = _Value()
        if not piece.is_value:
            stands = torch.empty(piece.shape, dtype=piece.torch_dtype, device="meta")
        stands.name_there = name
        leaves[name] = opened.paths[name], stands
    return opened, weights_in(nested(leaves), manifest.tensors)


class _Value:
    """Stands for a value that is not read yet."""

    name_there = ""


def _filled(node: Any, opened: OpenedFolder) -> Any:
    """A structure with what stands for tensors and values read."""
    if isinstance(node, Mapping):
        return {key: _filled(value, opened) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, opened) for value in node]
    return opened.leaf(node.name_there) if hasattr(node, "name_there") else node


def _own(node: Any) -> Any:
    """A structure whose tensors bring no more of their storages than they need.

    Tensors that share a storage of their own size, as tied weights do, go on sharing it.
    """
    if isinstance(node, list):
        return [_own(value) for value in node]
    if isinstance(node, Mapping):
        for key, value in node.items():
            node[key] = _own(value)  # type: ignore[index] # because it is a dict that was made for this
        return node
    if isinstance(node, torch.Tensor) and node.layout == torch.strided:
        needed = node.numel() * node.element_size()
        return node if node.untyped_storage().nbytes() <= needed else node.clone()
    return node
