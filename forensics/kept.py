"""What a checkpoint holds of the state that a resume needs besides model and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from sdc_guard.archive.manifest import FILE, Manifest
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
        stored = read_torch_file(_file(checkpoint.path, manifest)).tensors
    except CheckpointUnreadable:
        return Kept()
    states = [t for t in stored.values() if t.dtype == torch.uint8 and t.numel() in _GENERATORS]
    others = [
        name
        for name, entry in manifest.tensors.items()
        if entry.kind is None
        and name in stored
        and stored[name].is_floating_point()
        and stored[name].dim() > 0
    ]
    return Kept(generator=bool(states), buffers=tuple(others))


def _file(folder: Path, manifest: Manifest) -> Path:
    return folder / manifest.file
