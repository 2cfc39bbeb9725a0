"""What the pickle of a `torch.save` file says: tensors, plain values, and what is neither."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from sdc_guard.archive.inert_pickle import InertUnpickler, StoredTensor
from sdc_guard.archive.pickle_bounds import check_bounds

_MOST = 10_000  # values of one structure that are listed
_DEEPEST = 100
_LONGEST = 1_000  # characters of a path
_MOST_TYPES = 1_000
_LARGEST = 1 << 64


class _Foreign:
    """Stands for an object whose type is not known: takes any call and any state."""

    __slots__ = ()
    of = "object"

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __call__(self, *_: Any, **__: Any) -> _Foreign:
        return self

    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, *_: Any) -> None: ...
    def append(self, _: Any) -> None:
        """Pickle fills lists and their subclasses by this name."""

    def extend(self, _: Any) -> None:
        """Likewise."""


class _Buffer(_Foreign):
    """An io.BytesIO: its state is (content, position, attributes)."""

    of = "_io.BytesIO"
    content = b""

    def __setstate__(self, state: Any) -> None:
        first = state[0] if isinstance(state, tuple) and state else b""
        self.content = first if isinstance(first, bytes) else b""


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Protocol 2 has no bytes: they are a text to be encoded."""
    if not isinstance(text, str) or encoding != "latin1":
        raise TypeError("no bytes")
    return text.encode("latin1")


class _ValueUnpickler(InertUnpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._types: dict[str, type[_Foreign]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return lambda *arguments: _encoded(*arguments)  # a new one: it can be given attributes
        if (module, name) == ("_io", "BytesIO"):
            return _Buffer
        if (module, name) == ("torch", "Size"):
            return tuple
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != InertUnpickler.__module__:
            return found
        of = f"{module}.{name}"
        if of not in self._types and len(self._types) < _MOST_TYPES:
            self._types[of] = type("_Named", (_Foreign,), {"__slots__": (), "of": of})
        return self._types.get(of, _Foreign)


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

    Raises errors of every kind if it is damaged, and pickle.UnpicklingError if it would take
    memory out of proportion.
    """
    check_bounds(content)
    values = Values()
    taken: Counter[str] = Counter()
    leaves = _leaves(_ValueUnpickler(io.BytesIO(content)).load(), name)
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
        yield (f"{path}.{word[:_LONGEST]}" if path else word[:_LONGEST]), value


def _put(values: Values, path: str, node: Any) -> None:
    if isinstance(node, StoredTensor):
        values.tensors[path] = node
    elif isinstance(node, (bool, float, str)) or (type(node) is int and abs(node) < _LARGEST):
        values.numbers[path] = node
    elif isinstance(node, torch.dtype):
        values.numbers[path] = str(node)
    elif isinstance(node, _Buffer) and node.content:
        values.buffers[path] = node.content
    else:
        values.foreign[path] = _type_name(node)


def _type_name(node: Any) -> str:
    of = node if isinstance(node, type) else type(node)
    return " ".join(str(getattr(of, "of", of.__name__)).split())[:200]
