"""State that a forward keeps outside of the model: in closures, globals and classes.

Seen is what the code of some functions names, and no more: variables of their closures, globals
of their modules, and attributes of the modules' classes. Of these, numbers, text, generators and
flat containers are put back. A counter that lives elsewhere, in a file or in an object of another
class, is not seen.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from ..signals.kept_values import Undo, of_value

_LARGEST = 10_000  # items of a container
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Outside:
    """Those variables as they are now, to be put back later, once or several times.

    Args:
        functions: whose variables are meant.
        classes: whose plain attributes are meant.
    """

    def __init__(self, functions: Iterable[FunctionType], classes: Iterable[type]) -> None:
        self._undo: list[Undo] = []
        self._seen: set[int] = set()
        for function in functions:
            for cell in function.__closure__ or ():
                self._keep_cell(cell)
            space = function.__globals__
            for name in _names(function.__code__):
                if name in space:
                    self._keep(space[name], partial(_set_global, space, name, space[name]))
        for kind in classes:
            for name, value in list(vars(kind).items()):
                if type(value) in _PLAIN and not name.startswith("__"):
                    self._keep(value, partial(_set_attribute, kind, name, value))

    def put_back(self) -> None:
        """Set them as they were."""
        for undo in self._undo:
            undo()

    def _keep_cell(self, cell: CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        self._keep(value, partial(setattr, cell, "cell_contents", value))

    def _keep(self, value: Any, rebind: Undo) -> None:
        if type(value) in _PLAIN:
            self._undo.append(rebind)
        elif id(value) not in self._seen and not isinstance(value, (torch.Tensor, torch.nn.Module)):
            self._seen.add(id(value))
            large = isinstance(value, (list, dict, set, deque)) and len(value) > _LARGEST
            undo = None if large else of_value(value)
            if undo is not None:
                self._undo.append(undo)


def functions_of(
    loss_fn: Callable[..., Any], model: torch.nn.Module
) -> tuple[list[FunctionType], list[type]]:
    """The loss function, what it calls by name, the forwards of the modules; and their classes.

    Modules of torch itself are left out.
    """
    classes = [
        kind
        for kind in dict.fromkeys(type(module) for module in model.modules())
        if not kind.__module__.startswith("torch.")
    ]
    found = [function for kind in classes for function in _methods(kind)]
    found += _functions(loss_fn)
    for function in list(found):
        for name in _names(function.__code__):
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and not called.__module__.startswith("torch"):
                found.append(called)
    return list(dict.fromkeys(found)), classes


def _functions(loss_fn: Any) -> Iterator[FunctionType]:
    while isinstance(loss_fn, partial):
        loss_fn = loss_fn.func
    if inspect.ismethod(loss_fn):
        loss_fn = loss_fn.__func__
    if isinstance(loss_fn, FunctionType):
        yield loss_fn
        for cell in loss_fn.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if isinstance(value, FunctionType):
                yield value


def _methods(kind: type) -> Iterator[FunctionType]:
    for value in vars(kind).values():
        if isinstance(value, FunctionType):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions inside of it
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _set_global(space: dict[str, Any], name: str, value: Any) -> None:
    if space.get(name) is not value:
        space[name] = value


def _set_attribute(kind: type, name: str, value: Any) -> None:
    if vars(kind).get(name) != value:
        setattr(kind, name, value)
