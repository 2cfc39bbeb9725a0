"""What a DCP directory's `.metadata` says twice, and whether it says the same.

It has no checksum. A name stands in it once and is referred to from everywhere else, so that most
damaged names agree with themselves; what can be compared is compared here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...shown import shown
from ..inert_pickle import Inert
from .dcp_pickle import IndexEntry, PropertiesEntry, TensorEntry

_KNOWN: Final = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")
_DEEPEST: Final = 100  # parts of a path
_CLASSES: Final = (
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.serialization._get_layout",
)


def contradiction(found: Mapping[str, Any]) -> str:
    """What of the attributes of `Metadata` contradicts itself, in a line; "" if nothing does.

    - a tensor that is described and not placed, or the other way round;
    - a name that is not the dotted path which the planner has for it;
    - a class or an attribute with a name that DCP has none of, but for a bit.

    Another planner may name things otherwise, and another version have other words: only what
    differs in a single bit counts.
    """
    items = {name for name in found["state_dict_metadata"] if isinstance(name, str)}
    indices = [vars(index) for index in found["storage_data"] if isinstance(index, IndexEntry)]
    placed = {index["fqn"] for index in indices if isinstance(index.get("fqn"), str)}
    if lost := [name for name in placed if name not in items]:
        return f"it places {shown(lost[0][:200])}, which it does not describe"
    planned = found.get("planner_data")
    paths = _paths(planned) if isinstance(planned, dict) else {}
    for name, path in paths.items():
        if _one_off(name, path):
            return f"it has two names for one tensor: {shown(name[:200])}, {shown(path[:200])}"
    if paths and (pair := _pair(items - paths.keys(), paths.keys() - items)):
        return f"it has two names for one tensor: {shown(pair[0][:200])}, {shown(pair[1][:200])}"
    return _odd_words(found)


def _paths(planned: dict[Any, Any]) -> dict[str, str]:
    """Name to the path that it was flattened from, with dots; "" for one that is far longer."""
    return {
        name: ".".join(map(str, path)) if _about(path) <= 2 * len(name) else ""
        for name, path in planned.items()
        if isinstance(name, str)
        and isinstance(path, (tuple, list))
        and len(path) <= _DEEPEST
        and all(isinstance(part, (str, int)) for part in path)
    }


def _about(path: Iterable[str | int]) -> int:
    """How long a path's text is, at most by half more: names share their parts."""
    return sum(len(part) if isinstance(part, str) else part.bit_length() // 4 for part in path)


def _pair(described: set[str], planned: set[str]) -> tuple[str, str] | None:
    """Two names of which one is the other with a flipped bit."""
    for name in sorted(described):
        for other in sorted(planned):
            if _one_off(name, other):
                return name, other
        return None  # one is enough to look at: there may be a million
    return None


def _one_off(one: str, other: str) -> bool:
    """Whether two names are as long, and differ in one bit."""
    if one == other or len(one) != len(other):
        return False
    left, right = one.encode(), other.encode()
    differ = int.from_bytes(left) ^ int.from_bytes(right)
    return len(left) == len(right) and differ.bit_count() == 1


def _odd_words(found: Mapping[str, Any]) -> str:
    """Names of classes and attributes that are none, but for a bit."""
    for name in found.keys() - set(_KNOWN):
        if _is_like(name, _KNOWN):
            return f"it has a part {shown(name[:200])}, which DCP does not"
    for value in (
        found.get("storage_meta"),
        *_of_properties(found["state_dict_metadata"].values()),
    ):
        if (
            isinstance(value, Inert)
            and value.name not in _CLASSES
            and _is_like(value.name, _CLASSES)
        ):
            return f"it names {shown(value.name[:200])}, which there is not"
    return ""


def _of_properties(entries: Iterable[Any]) -> tuple[Any, ...]:
    """What the first tensor's properties are: the others refer to the same words."""
    for entry in entries:
        properties = vars(entry).get("properties") if isinstance(entry, TensorEntry) else None
        if isinstance(properties, PropertiesEntry):
            state = vars(properties).get("state")
            return state if isinstance(state, tuple) else ()
    return ()


def _is_like(name: str, known: Iterable[str]) -> bool:
    return any(_one_off(name, word) for word in known)
