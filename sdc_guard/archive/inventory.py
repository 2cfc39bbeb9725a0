"""What an unpickled structure holds, by dotted path: tensors, numbers, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .inert_pickle import Inert, Storage, StoredTensor

_DEEPEST: Final = 100  # containers in containers
_MOST_VISITS: Final = 5_000_000  # what a pickle names many times is visited as often
_MOST_NUMBERS: Final = 1_000  # of one list: a longer one is data, and no setting


@dataclass
class Inventory:
    """The leaves of a structure, by dotted path; a path that comes again is numbered.

    Attributes:
        tensors: as the file describes them; each once.
        aliases: path to the path of the tensor that lies in the same place in the same way.
        numbers: plain numbers and texts.
        foreign: what is neither, with its type's name.
    """

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int | float | str | bool] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)


def inventory(root: Any) -> Inventory:
    """Walk through a structure of `InertUnpickler`.

    Raises:
        RecursionError: containers in containers without an end.
    """
    found = Inventory()
    first: dict[StoredTensor, str] = {}
    named: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for path, value in _Walk().leaves(root, ()):
        is_tensor = isinstance(value, StoredTensor)
        name = _free(path, named[is_tensor])  # tensors by themselves: as they are named elsewhere
        if not is_tensor:
            _note(found, name, value)
        elif value in first:
            found.aliases[name] = first[value]
        else:
            found.tensors[name] = value
            first[value] = name
    return found


def _free(path: str, taken: dict[str, int]) -> str:
    name = path
    while name in taken:
        taken[path] += 1
        name = f"{path}#{taken[path]}"
    taken[name] = 1
    return name


def _note(found: Inventory, name: str, value: Any) -> None:
    if isinstance(value, (bool, int, float, str)):
        found.numbers[name] = value
    elif isinstance(value, Inert):
        found.foreign[name] = value.name
    elif isinstance(value, Storage):
        found.foreign[name] = "torch storage"
    elif isinstance(value, torch.dtype):
        found.foreign[name] = str(value)
    elif isinstance(value, (list, tuple)):
        found.foreign[name] = f"{type(value).__name__} of {len(value):,} numbers"
    else:
        found.foreign[name] = type(value).__name__


class _Walk:
    """One walk: what it has seen and how much of its time is left."""

    def __init__(self) -> None:
        self._left = _MOST_VISITS
        self._inside = 0  # placeholders around
        self._seen: set[int] = set()  # placeholders, which may hold each other

    def leaves(self, node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        self._spend(1)
        if len(path) > _DEEPEST:
            if self._inside:  # of what is left alone anyway
                return
            raise RecursionError("containers in containers, without an end")
        if isinstance(node, dict):
            for key, value in node.items():
                yield from self.leaves(value, (*path, _text(key)))
        elif isinstance(node, (list, tuple)):
            if len(node) > _MOST_NUMBERS and self._all_numbers(node):
                yield ".".join(path), node
                return
            for index, value in enumerate(node):
                yield from self.leaves(value, (*path, str(index)))
        elif node is not None:
            yield ".".join(path), node
            if isinstance(node, Inert) and id(node) not in self._seen:
                self._seen.add(id(node))
                self._inside += 1
                yield from self._within(node, path)
                self._inside -= 1

    def _within(self, node: Inert, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """The tensors that a placeholder was given: a module saved whole has its own there.

        Numbers and classes in it say nothing without its class.
        """
        state = node.state
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = [part for part in state if isinstance(part, dict)]  # one of them of slots
        for part in (node.arguments, *(state if isinstance(state, list) else [state]), node.items):
            if isinstance(part, (dict, list, tuple)):
                for place, value in self.leaves(part, path):
                    if isinstance(value, StoredTensor):
                        yield place, value

    def _all_numbers(self, node: Any) -> bool:
        self._spend(len(node))
        return all(isinstance(value, (bool, int, float, str)) for value in node)

    def _spend(self, visits: int) -> None:
        self._left -= visits
        if self._left < 0:
            raise RecursionError("more values than are read")


def _text(key: Any) -> str:
    return key if isinstance(key, str) else key.name if isinstance(key, Inert) else str(key)
