"""The weights in a folder of the Hugging Face Trainer: where they are, and in which format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ..content import Content, Integrity
from .described import Described
from .safetensors_file import check_file, describe, open_file
from .safetensors_index import sets_in
from .safetensors_shards import check_set, open_set
from .shard_agreement import describe_set
from .torch_part import check_part, open_part, part_trouble

_SINGLE: Final = ("model.safetensors", "adapter_model.safetensors")
_TORCH: Final = ("pytorch_model.bin", "adapter_model.bin")
_SHARD: Final = re.compile(r"pytorch_model-\d+-of-\d+\.bin")
_DEEPSPEED_FILE: Final = "mp_rank_00_model_states.pt"
_FSDP: Final = re.compile(r"pytorch_model_fsdp_\d+")


@dataclass(frozen=True)
class Weights:
    """The weights of one folder.

    Attributes:
        described: what can be told of them without reading them.
        open: what they hold; raises CheckpointUnreadable where that cannot be told.
        check: reads every byte of them; raises CheckpointUnreadable where nothing can be read.
    """

    described: Described
    open: Callable[[], Content]
    check: Callable[[], Integrity]


def weights_in(folder: Path, names: set[str], deepspeed: str | None) -> Weights | Described:
    """The weights in a folder, or why there are none that can be read here.

    Args:
        folder: of the Trainer.
        names: in it.
        deepspeed: the name of DeepSpeed's folder in it.
    """
    for name in _SINGLE:
        if name in names:
            file = folder / name
            return Weights(_named(name, describe(file)), partial(open_file, file),
                           partial(check_file, file))  # fmt: skip
    sets = sets_in(folder)
    if sets:
        shards = sets[0]
        return Weights(describe_set(shards), partial(open_set, shards), partial(check_set, shards))
    for name in _TORCH:
        if name in names:
            return _torch(folder / name, name)
    if deepspeed and (folder / deepspeed / _DEEPSPEED_FILE).is_file():
        return _torch(folder / deepspeed / _DEEPSPEED_FILE, f"{deepspeed}/{_DEEPSPEED_FILE}")
    return Described((_elsewhere(names, deepspeed),), readable=False)


def _torch(file: Path, name: str) -> Weights:
    trouble = part_trouble(file)
    described = Described((f"{name}: {trouble}",), readable=False) if trouble else Described()
    return Weights(described, partial(open_part, file), partial(check_part, file))


def _named(name: str, found: Described) -> Described:
    reasons = tuple(f"{name}: {reason}" for reason in found.reasons)
    notes = tuple(f"{name}: {note}" for note in found.notes)
    return Described(reasons, notes, found.readable, found.step)


def _elsewhere(names: set[str], deepspeed: str | None) -> str:
    """Why there are no weights to read."""
    fsdp = sorted(name for name in names if _FSDP.fullmatch(name))
    if fsdp:
        return f"its weights are in {fsdp[0]}, a folder of DCP: give that folder"
    if deepspeed:
        return (
            f"its weights are in {deepspeed}, a folder of DeepSpeed without {_DEEPSPEED_FILE}: "
            "zero_to_fp32.py puts them together"
        )
    if any(_SHARD.fullmatch(name) for name in names):
        return "its weights are in several .bin files, which are not read"
    return f"incomplete: {_SINGLE[0]} missing"
