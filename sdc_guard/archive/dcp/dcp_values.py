"""What a DCP directory holds besides tensors, and the step that it says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...errors import CheckpointUnreadable
from ..content import StoredTensor
from ..inert_pickle import StoredTensor as Stub
from .dcp_metadata import DcpMetadata
from .dcp_tensors import source, stored_tensor
from .saved_values import Values, load_values
from .saved_zip import DamagedItem, Source, opened

COMMON = "common.pt"  # Megatron's file of what is no shard
_ZIP = b"PK\x03\x04"
_NESTED = 2  # torch.save files within torch.save files that are looked into
# the first that is there counts
STEP_NAMES = (
    "step", "global_step", "iteration", "train_state.step", "train_state.global_step",
    "trainer_state.step", "state.step",
)  # fmt: skip
_STEP_HOLDERS = ("train_state", "trainer_state")
_OPTIMIZER_STEP = re.compile(r"((?:.*\.)?)state\..*\.step$")
_MOST_SHARDS = 32
_COUNTS = (torch.int32, torch.int64, torch.float32, torch.float64)


@dataclass
class Found:
    """What items hold: tensors within them, plain values, and what could not be read."""

    tensors: dict[str, tuple[Source, Stub]] = field(default_factory=dict)
    numbers: dict[str, int | float | str | bool] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)


def found_in(folder: Path, metadata: DcpMetadata) -> Found:
    """What the items that are no tensors hold; those that cannot be read are among `foreign`."""
    found = Found()
    for name in metadata.others:
        _add(found, folder, metadata, name)
    if (folder / COMMON).is_file():
        item = Source(folder / COMMON, 0, (folder / COMMON).stat().st_size)
        try:
            _merge(found, item, _values(item, ""))
        except DamagedItem as error:
            found.foreign[COMMON] = f"cannot be read: {error}"
    return found


def saved_step(folder: Path, metadata: DcpMetadata) -> int | None:
    """The step that a directory's items say; None if none does. Reads no more than these."""
    found = Found()
    for name in (*STEP_NAMES, *_STEP_HOLDERS):
        if name in metadata.others:
            _add(found, folder, metadata, name)
    if not metadata.others.keys() & set(STEP_NAMES) and (folder / COMMON).is_file():
        common = DcpMetadata({}, {}, 0)
        found.numbers.update(found_in(folder, common).numbers)
    for name in STEP_NAMES:
        step = _whole(found.numbers.get(name))
        if step is None and name in metadata.tensors:
            step = _number(stored_tensor(folder, name, metadata.tensors[name]))
        if step is not None:
            return step
    return None


def steps_differ(folder: Path, metadata: DcpMetadata, shards: Iterable[str]) -> str:
    """Whether shards come from two saves, by the step counters of each Adam-like optimizer in them.

    A parameter that is trained only from some step on counts less: a shard is judged by the
    largest count in it, and only one that has two at least.
    """
    counters: dict[str, dict[str, list[str]]] = {}  # optimizer: shard: names
    whole = set(shards)
    for name, item in metadata.tensors.items():
        if len(item.chunks) == 1 and (optimizer := _OPTIMIZER_STEP.match(name)):
            place = item.chunks[0].place
            if place and place.file in whole:
                by_shard = counters.setdefault(optimizer[1], {})
                by_shard.setdefault(place.file, []).append(name)
    for by_shard in counters.values():
        judged = {shard: names for shard, names in by_shard.items() if len(names) > 1}
        if told := _differ(folder, metadata, dict(list(judged.items())[:_MOST_SHARDS])):
            return told
    return ""


def _differ(folder: Path, metadata: DcpMetadata, names: dict[str, list[str]]) -> str:
    if len(names) < 2:
        return ""
    firsts = {_count(folder, metadata, some[:1]) for some in names.values()}
    if len(firsts - {None}) < 2:  # one of each is enough where they are equal
        return ""
    counts = {shard: _count(folder, metadata, some) for shard, some in names.items()}
    known = {shard: count for shard, count in counts.items() if count is not None}
    if len(set(known.values())) < 2:
        return ""
    low, high = min(known, key=lambda shard: known[shard]), max(known, key=lambda s: known[s])
    return (
        f"the optimizer's step is {known[low]} in {low} and {known[high]} in {high}: shards of "
        "two saves (or one with only parameters that joined the training later)"
    )


def held_by(item: Source, name: str) -> Found:
    """What a torch.save item holds.

    Args:
        name: path of the whole; "" for none.

    Raises:
        DamagedItem: it is no such item, or a damaged one.
    """
    found = Found()
    _merge(found, item, _values(item, name))
    return found


def _values(item: Source, name: str) -> Values:
    with opened(item) as saved:
        return load_values(saved.structure(), name)


def _add(found: Found, folder: Path, metadata: DcpMetadata, name: str) -> None:
    place = metadata.others[name]
    if place is None:
        found.foreign[name] = "cannot be read: the metadata does not say where it is"
        return
    try:
        item = source(folder, place)
        _merge(found, item, _values(item, name))
    except DamagedItem as error:
        found.foreign[name] = f"cannot be read: {error}"


def _merge(found: Found, item: Source, values: Values, depth: int = 0) -> None:
    found.tensors |= {name: (item, stub) for name, stub in values.tensors.items()}
    found.numbers |= values.numbers
    found.foreign |= values.foreign
    for name, content in values.buffers.items():
        inner = Source(item.file, content=content)
        try:
            if depth == _NESTED or not content.startswith(_ZIP):
                raise DamagedItem("not looked into")
            _merge(found, inner, _values(inner, name), depth + 1)
        except DamagedItem:
            found.foreign[name] = "_io.BytesIO"


def _count(folder: Path, metadata: DcpMetadata, names: Iterable[str]) -> int | None:
    counts = [_number(stored_tensor(folder, name, metadata.tensors[name])) for name in names]
    return max((count for count in counts if count is not None), default=None)


def _number(tensor: StoredTensor) -> int | None:
    if tensor.numel != 1 or tensor.dtype not in _COUNTS:
        return None
    try:
        return _whole(tensor.read().item())
    except CheckpointUnreadable:
        return None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if float(value).is_integer() and 0 <= value < 1 << 62 else None
