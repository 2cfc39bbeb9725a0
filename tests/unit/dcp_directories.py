"""Directories that DCP itself wrote, and what DCP itself reads from them."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from sdc_guard.digest.reference import words

STEP = 7


def saved(folder: Path, state: dict[str, Any], **options: Any) -> Path:
    """Save a state as one process does; `options` go to DCP's writer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because saving again into a directory warns
        dcp.save(state, storage_writer=FileSystemWriter(folder, **options), no_dist=True)
    return folder


def loaded(folder: Path, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What DCP reads of a state's tensors, by dotted path."""
    target = copy.deepcopy(state)
    for tensor in flat(target).values():
        tensor.view(torch.uint8).zero_() if tensor.dim() else tensor.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.load(target, checkpoint_id=folder, no_dist=True)
    return flat(target)


def flat(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    """A state's tensors by dotted path."""
    if isinstance(state, torch.Tensor):
        return {path: state}
    items = state.items() if isinstance(state, dict) else []
    items = enumerate(state) if isinstance(state, list) else items
    found = {}
    for key, value in items:
        found |= flat(value, f"{path}.{key}" if path else str(key))
    return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, and each bit is the same."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(words(one.contiguous()), words(other.contiguous()))


def training(steps: int = STEP, seed: int = 0) -> dict[str, Any]:
    """The state of a small training with AdamW, as it is after some steps."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 5, generator=generator)).square().sum().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": steps}


def in_chunks(folder: Path, tensor: torch.Tensor, boxes: list[tuple[Any, Any]]) -> Path:
    """Save a tensor "w" in chunks, given by offsets and sizes, as several ranks would."""
    parts = {}
    for index, (offsets, sizes) in enumerate(boxes):
        box = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
        parts[str(index)] = tensor[box].clone()
    saved(folder, parts)

    def join(metadata: Any) -> None:
        entry = metadata.state_dict_metadata["0"]
        entry.size = tensor.shape
        entry.chunks, places = [], {}
        for index, place in metadata.storage_data.items():
            offsets, sizes = map(torch.Size, boxes[int(index.fqn)])
            entry.chunks.append(ChunkStorageMetadata(offsets, sizes))
            places[MetadataIndex("w", offsets)] = place
        metadata.state_dict_metadata, metadata.storage_data = {"w": entry}, places

    change_metadata(folder, join)
    return folder


def change_metadata(folder: Path, change: Callable[[Any], None]) -> None:
    """Change what `.metadata` says; it is DCP's own, so it may be unpickled here."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
