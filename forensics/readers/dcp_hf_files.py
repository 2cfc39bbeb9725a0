"""The files of DCP in the form of Hugging Face: safetensors, each with boxes of the tensors.

`HuggingFaceStorageWriter` names them shard-00001-model-00001-of-00002.safetensors, by rank and by
part of the model, and notes in the header where in the whole tensors the boxes are. Put together
(consolidated) they are model-00001-of-00002.safetensors, an ordinary checkpoint in shards; the
boxes then lie in the folder `sharded` beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdc_guard.archive.safetensors_header import Header, read_header
from sdc_guard.errors import CheckpointUnreadable

from ..content import StoredTensor
from .dcp_shards import listed
from .safetensors_tensors import step, tensors

SHARDED = "sharded"
_SHARD = re.compile(r"shard-(\d{5,})-model-\d{5,}-of-\d{5,}\.safetensors")
_WHOLE = re.compile(r"model-\d{5,}-of-(\d{5,})\.safetensors")
_PLACES = "DCP_SHARDING_INFO"  # of a header: name to {"saved_offsets": [...]}


@dataclass(frozen=True)
class Box:
    """A box of a tensor in a file."""

    offsets: tuple[int, ...]
    stored: StoredTensor

    @property
    def end(self) -> tuple[int, ...]:
        """One past its last element, in each dimension."""
        return tuple(at + size for at, size in zip(self.offsets, self.stored.shape, strict=True))


@dataclass
class HfFiles:
    """What the files of one checkpoint say.

    Attributes:
        boxes: of each tensor, by name.
        files: those that can be read.
        reasons: what is wrong with them.
        notes: what is worth telling.
        steps: that they say they are of.
        bytes: in the files.
    """

    boxes: dict[str, list[Box]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    bytes: int = 0


def shard_names(names: list[str]) -> list[str]:
    """Those that are boxes of tensors."""
    return sorted(name for name in names if _SHARD.fullmatch(name))


def whole_names(names: list[str]) -> list[str]:
    """Those that are put together."""
    return sorted(name for name in names if _WHOLE.fullmatch(name))


def read_shards(folder: Path, names: list[str]) -> HfFiles:
    """What files with boxes say, by their headers."""
    found = _read(folder, names)
    ranks = {int(match[1]) for name in names if (match := _SHARD.fullmatch(name))}
    lost = sorted(set(range(1, max(ranks, default=0) + 1)) - ranks)
    if lost:
        prefixes = listed(f"shard-{rank:05}" for rank in lost)
        found.reasons["shards"] = f"the shards of {len(lost)} ranks are missing: {prefixes}"
    return found


def read_whole(folder: Path, names: list[str]) -> HfFiles:
    """What files that are put together say, by their headers."""
    found = _read(folder, names)
    counts = {int(match[1]) for name in names if (match := _WHOLE.fullmatch(name))}
    if counts and len(names) != max(counts):
        found.reasons["consolidated"] = f"{len(names)} of {max(counts)} consolidated files present"
    return found


def _read(folder: Path, names: list[str]) -> HfFiles:
    found = HfFiles()
    for name in names:
        path = folder / name
        try:
            header = read_header(path)
            _add(found, path, header)
        except CheckpointUnreadable as error:
            found.reasons[name] = error.what
            continue
        found.files.append(path)
        found.bytes += path.stat().st_size
        if header.entries and header.trouble:
            held = listed(entry.name for entry in header.entries if entry.end > header.held)
            found.reasons[name] = f"{header.trouble}; it cuts {held}"
        if header.trailing:
            found.notes.append(f"{header.trailing:,} bytes after the last tensor of {name}")
        if (said := step(header.metadata)) is not None:
            found.steps.add(said)
    return found


def _add(found: HfFiles, path: Path, header: Header) -> None:
    places = _places(path, header)
    for name, stored in tensors(path, header).items():
        offsets = _offsets(path, places, name, len(stored.shape))
        found.boxes.setdefault(name, []).append(Box(offsets, stored))


def _places(path: Path, header: Header) -> Mapping[str, Any] | None:
    text = header.metadata.get(_PLACES)
    if text is None:
        return None  # of whole tensors
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict):
        raise CheckpointUnreadable(f"{_PLACES} in its header is damaged", where=str(path))
    return places


def _offsets(
    path: Path, places: Mapping[str, Any] | None, name: str, dimensions: int
) -> tuple[int, ...]:
    if places is None:
        return (0,) * dimensions
    entry = places.get(name)
    offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != dimensions:
        raise CheckpointUnreadable(f"{_PLACES} does not say where {name} is", where=str(path))
    if not all(type(at) is int and 0 <= at < 1 << 62 for at in offsets):
        raise CheckpointUnreadable(f"{_PLACES} has no place for {name}", where=str(path))
    return tuple(offsets)
