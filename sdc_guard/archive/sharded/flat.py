"""The leaves of a nested payload, by the names that torch.distributed.checkpoint gives them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch

from ...errors import UsageError

# how one comes to a leaf: "d", "i" and "l" for a dict's text or whole number and a list's index
Path: TypeAlias = tuple[tuple[str, str | int], ...]
_TEXT, _NUMBER, _INDEX = "d", "i", "l"
KINDS: Final = (_TEXT, _NUMBER, _INDEX)


def flattened(payload: Mapping[str, Any]) -> dict[str, tuple[Path, Any]]:
    """The leaves by name, each with the path to it.

    Names are the dotted keys, as DCP has them: mappings are gone into, and lists that hold a
    tensor, a mapping or such a list. An empty mapping is a leaf here, so that it comes back.

    Raises:
        UsageError: two leaves would have one name, or a key is neither text nor a whole number.
    """
    found: dict[str, tuple[Path, Any]] = {}
    for path, leaf in _walk(payload, ()):
        name = name_of(path)
        if name in found:
            raise UsageError(f"two values of the checkpoint have the name {name!r}")
        found[name] = path, leaf
    return found


def nested(leaves: Mapping[str, tuple[Path, Any]]) -> dict[str, Any]:
    """The payload that has these leaves; the inverse of `flattened`."""
    root: dict[Any, Any] = {}
    for path, leaf in leaves.values():
        place(root, path, leaf)
    return root


def place(root: Any, path: Path, leaf: Any) -> None:
    """Put a leaf where its path leads, making the containers on the way."""
    node = root
    for (_, key), (kind, _) in itertools.pairwise(path):
        following: Any = [] if kind == _INDEX else {}
        node = _child(node, key, following)
    _set(node, path[-1][1], leaf)


def name_of(path: Path) -> str:
    """The dotted name of a leaf."""
    return ".".join(str(key) for _, key in path)


def _child(node: Any, key: Any, following: Any) -> Any:
    if isinstance(node, list):
        if len(node) <= key or node[key] is None:
            _set(node, key, following)
        return node[key]
    return node.setdefault(key, following)


def _set(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, list):
        node.extend([None] * (key + 1 - len(node)))
    node[key] = value


def _walk(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _walk(value, (*path, (_kind(key, path), key)))
    elif isinstance(node, list) and not _is_leaf(node):
        for index, value in enumerate(node):
            yield from _walk(value, (*path, (_INDEX, index)))
    else:
        yield path, node


def _kind(key: Any, path: Path) -> str:
    if isinstance(key, str):
        return _TEXT
    if isinstance(key, int) and not isinstance(key, bool):
        return _NUMBER
    raise UsageError(
        f"a key of the checkpoint is {key!r}, neither text nor a whole number",
        where=name_of(path),
        next_step="give it another key",
    )


def _is_leaf(node: list[Any]) -> bool:
    return not any(
        isinstance(entry, (torch.Tensor, Mapping))
        or (isinstance(entry, list) and not _is_leaf(entry))
        for entry in node
    )
