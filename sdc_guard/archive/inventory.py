"""What an unpickled structure holds, by dotted path: tensors, numbers, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .inert_pickle import Inert, Storage, StoredTensor
from .walk import leaves

_REBUILT: Final = "torch._utils._rebuild_"  # and quantized, sparse, meta ...


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

    @property
    def foreign_tensors(self) -> tuple[str, ...]:
        """Those of `foreign` that are tensors, of a kind that is not evaluated."""
        return tuple(name for name, kind in self.foreign.items() if kind.startswith(_REBUILT))


def inventory(root: Any, size: int) -> Inventory:
    """Walk through a structure of `InertUnpickler`.

    Args:
        size: bytes of its pickle.

    Raises:
        RecursionError: containers in containers without an end, or too many values.
    """
    found = Inventory()
    first: dict[StoredTensor, str] = {}
    named: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for path, value in leaves(root, size):
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
