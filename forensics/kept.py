"""What a checkpoint holds of the state that a resume needs besides model and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from sdc_guard.archive.manifest import FILE, SHARDED, Manifest
from sdc_guard.archive.torch_file import read_torch_file
from sdc_guard.errors import CheckpointUnreadable

from .calibration import Kept
from .checkpoint import Checkpoint

# Bytes of a generator's state: of the CPU (a Mersenne twister), and of CUDA (seed and offset)
_GENERATORS: Final = (5056, 16)


def kept_in(checkpoint: Checkpoint) -> Kept:
    """What it holds; only of the guard's own archive is it known which tensor is what."""
    if not (checkpoint.path / FILE).is_file():
        return Kept()
    try:
        manifest = Manifest.read(checkpoint.path)
        stored = _stored(checkpoint.path, manifest)
    except CheckpointUnreadable:
        return Kept()
    states = [
        name
        for name, (dtype, shape) in stored.items()
        if dtype == torch.uint8 and shape.numel() in _GENERATORS
    ]
    others = [
        name
        for name, entry in manifest.tensors.items()
        if entry.kind is None
        and name in stored
        and stored[name][0].is_floating_point
        and len(stored[name][1]) > 0
    ]
    return Kept(generator=bool(states), buffers=tuple(others))


def _stored(folder: Path, manifest: Manifest) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Dtype and shape of the tensors, by name.

    Raises:
        CheckpointUnreadable: the file is missing or damaged.
    """
    if manifest.format == SHARDED:
        return {
            name: (getattr(torch, entry.dtype or ""), torch.Size(entry.shape or ()))
            for name, entry in manifest.tensors.items()
            if hasattr(torch, entry.dtype or "")
        }
    tensors = read_torch_file(folder / manifest.file).tensors
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
