"""State that a loss function or a forward keeps outside of the model.

Put back is what `reachable` finds: which object a variable holds, numbers and text, the contents
of containers, tensors, arrays and generators, and modules (a criterion, a teacher) with their
buffers and parameters. Not seen are files, iterators, what C++ code keeps, tensors of more than 16
MiB, and what nothing names.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from ...signals.kept_values import Undo, of_tensor, of_value, version
from ...signals.restoration import Kept
from .reachable import PLAIN, reachable

_LARGEST: Final = 10_000  # items of a container
_LARGEST_TENSOR: Final = 1 << 24  # bytes


@dataclass(frozen=True)
class _Kept:
    """What a variable or an object held, in a form that can be compared, and what undoes it."""

    held: Any
    undo: Undo


class Outside:
    """That state as it is now, to be put back later, once or several times.

    Args:
        roots: functions, modules and objects from which it can be reached.
        model: kept by somebody else, with all of its modules, parameters and buffers.
    """

    def __init__(self, roots: Iterable[Any], model: torch.nn.Module) -> None:
        own: list[Any] = [*model.parameters(), *model.buffers()]
        found = reachable(roots, {id(tensor) for tensor in own})
        inside = set(map(id, model.modules()))
        self._alive = found  # an object's id could come again otherwise
        self._kept: dict[Hashable, _Kept] = {
            variable.key: _Kept(variable.value, variable.bind) for variable in found.variables
        }
        for value in found.values:
            if id(value) not in inside and (kept := _keep(value)) is not None:
                self._kept[id(value)] = kept

    def put_back(self) -> None:
        """Set it as it was.

        Raises:
            ParameterWritten: a large module outside of the model had its parameters changed.
        """
        for kept in self._kept.values():
            kept.undo()

    def different(self, other: Outside) -> set[Hashable]:
        """Which of them are not what they are in `other`."""
        return {
            key
            for key, kept in self._kept.items()
            if key in other._kept and not _same(kept.held, other._kept[key].held)
        }

    def take_from(self, other: Outside, keys: Collection[Hashable]) -> None:
        """Put back some of them as they were in `other`."""
        for key in keys:
            if key in other._kept:
                self._kept[key] = other._kept[key]


def roots_of(loss_fn: Any, model: torch.nn.Module) -> list[Any]:
    """From where state outside of a model can be reached: its loss function and its modules."""
    return [loss_fn, *model.modules()]


def _keep(value: Any) -> _Kept | None:
    if isinstance(value, torch.nn.Module):
        return _module(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.numel() * value.element_size() > (
            _LARGEST_TENSOR
        ):
            return None
        return _Kept(version(value), of_tensor(value, always=False))
    if isinstance(value, (list, dict, set, deque)):
        if len(value) > _LARGEST:
            return None
        held: Any = [*value, *value.values()] if isinstance(value, dict) else list(value)
    elif isinstance(value, torch.Generator):
        held = value.get_state().tolist()
    else:
        held = value.getstate() if isinstance(value, random.Random) else None
    undo = of_value(value)
    return None if undo is None else _Kept(held, undo)


def _module(module: torch.nn.Module) -> _Kept:
    """A module alone: those that it holds are reached by themselves."""
    sizes = {
        name: parameter.numel() * parameter.element_size()
        for name, parameter in module.named_parameters(recurse=False)
    }
    small = [name for name, size in sizes.items() if size <= _LARGEST_TENSOR]
    return _Kept(None, Kept(module, small, alone=True).put_back)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if one is two:
        return True
    plain = type(one) in (*PLAIN, tuple) and type(two) is type(one)
    return plain and bool(one == two)
