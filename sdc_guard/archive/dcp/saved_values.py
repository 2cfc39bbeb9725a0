"""What the pickle of a `torch.save` file says: tensors, plain values, and what is neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...shown import shown
from ..inert_pickle import Inert, InertUnpickler, StoredTensor

_MOST = 10_000  # values of one structure that are listed
_DEEPEST = 100
_LONGEST = 1_000  # characters of a path
_LARGEST = 1 << 64
_BUFFER = "_io.BytesIO"


@dataclass(frozen=True)
class Values:
    """The values of a structure by their dotted path.

    Attributes:
        tensors: as the file describes them.
        numbers: plain numbers and texts.
        foreign: what is neither, with its type's name.
        buffers: contents of io.BytesIO objects, which often are files of their own.
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    numbers: dict[str, int | float | str | bool] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, bytes] = field(default_factory=dict)


def load_values(content: bytes, name: str = "") -> Values:
    """What a pickle of `torch.save` says, without running any of it.

    Args:
        content: the pickle.
        name: path of the whole; "" for none.

    Raises errors of every kind if it is damaged or would take time or memory out of proportion.
    """
    values = Values()
    taken: Counter[str] = Counter()
    leaves = _leaves(InertUnpickler(content).load(), name)
    for count, (path, node) in enumerate(leaves):
        if count == _MOST:
            values.foreign[name or "the rest"] = f"more than {_MOST:,} values: not all are listed"
            break
        if node is not None:
            taken[path] += 1  # keys may hold dots, and 1 and "1" are two keys
            _put(values, path if taken[path] == 1 else f"{path}#{taken[path]}", node)
    return values


def _leaves(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves in order, by path; containers too, as None: a structure can share its parts,
    and have far more paths than bytes."""
    stack = [iter([(name, root)])]
    while stack:
        try:
            path, node = next(stack[-1])
        except StopIteration:
            stack.pop()
            continue
        deep = len(stack) > _DEEPEST or len(path) > _LONGEST
        if isinstance(node, (dict, list, tuple)) and not deep:
            yield path, None
            stack.append(_children(path, node))
        else:
            yield path, node


def _children(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        word = str(key) if isinstance(key, (str, int, float)) else type(key).__name__
        word = shown(word[:_LONGEST])
        yield (f"{path}.{word}" if path else word), value


def _put(values: Values, path: str, node: Any) -> None:
    if isinstance(node, StoredTensor):
        values.tensors[path] = node
    elif isinstance(node, str):
        # half a surrogate pair can be neither printed nor written
        values.numbers[path] = node.encode("utf-8", "backslashreplace").decode()
    elif isinstance(node, (bool, float)) or (type(node) is int and abs(node) < _LARGEST):
        values.numbers[path] = node
    elif isinstance(node, torch.dtype):
        values.numbers[path] = str(node)
    elif (content := _buffered(node)) is not None:
        values.buffers[path] = content
    else:
        values.foreign[path] = _type_name(node)


def _buffered(node: Any) -> bytes | None:
    """The content of an io.BytesIO, whose state is (content, position, attributes)."""
    if isinstance(node, Inert) and node.name == _BUFFER and type(node.state) is tuple:
        return node.state[0] if node.state and type(node.state[0]) is bytes else None
    return None


def _type_name(node: Any) -> str:
    name = node.name if isinstance(node, Inert) else type(node).__name__
    return shown(name[:200])
