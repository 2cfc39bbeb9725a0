"""State that a forward keeps outside of the model: in closures, globals, classes and objects.

Seen is what the code of some functions names, and no more: variables of their closures, globals
of their modules, attributes of the modules' classes, and those of objects that a variable or a
module holds, if their class is the script's own. Of these, numbers, text, generators and flat
containers are put back. A counter that lives elsewhere, in a file or two objects deep, is not
seen.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ...signals.kept_values import Undo, of_value

_LARGEST = 10_000  # items of a container
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# a queue's counters, say, belong to the threads that share it
_NOT_THE_SCRIPTS = {*sys.stdlib_module_names, "torch", "numpy", "sdc_guard"}
_NO_HOLDERS = (torch.nn.Module, torch.optim.Optimizer, type, ModuleType)


@dataclass(frozen=True)
class _Kept:
    """One variable: what it held, in a form that can be compared, and what puts it back."""

    held: Any
    undo: Undo


class Outside:
    """Those variables as they are now, to be put back later, once or several times.

    Args:
        functions: whose variables are meant.
        classes: whose plain attributes are meant.
        objects: likewise, and those that the variables hold, if their class is the script's own.
    """

    def __init__(
        self,
        functions: Iterable[FunctionType],
        classes: Iterable[type],
        objects: Iterable[Any] = (),
    ) -> None:
        self._kept: dict[Hashable, _Kept] = {}
        variables = list(_variables(functions, classes))
        for held in [value for _, value, _ in variables] + [*objects]:
            variables += _attributes(held)
        for key, value, rebind in variables:
            kept = _keep(value, rebind)
            if kept is not None:
                # of a container the variable does not count: it may have several names
                self._kept[key if type(value) in _PLAIN else id(value)] = kept

    def put_back(self) -> None:
        """Set them as they were."""
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


def functions_of(
    loss_fn: Callable[..., Any], model: torch.nn.Module
) -> tuple[list[FunctionType], list[type]]:
    """The loss function, what it calls by name, the methods of the modules; and their classes.

    Modules of torch itself are left out.
    """
    classes = [
        kind
        for kind in dict.fromkeys(type(module) for module in model.modules())
        if not kind.__module__.startswith("torch.")
    ]
    found = [
        value for kind in classes for value in vars(kind).values() if type(value) is FunctionType
    ]
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
        for _, value in _cells(loss_fn):
            if isinstance(value, FunctionType):
                yield value


def _variables(
    functions: Iterable[FunctionType], classes: Iterable[type]
) -> Iterator[tuple[Hashable, Any, Undo]]:
    """A key, the present value, and what binds the variable to it again."""
    for function in functions:
        for cell, value in _cells(function):
            yield ("cell", id(cell)), value, partial(setattr, cell, "cell_contents", value)
        space = function.__globals__
        for name in _names(function.__code__):
            if name in space:
                value = space[name]
                yield ("global", id(space), name), value, partial(_set_global, space, name, value)
    for kind in classes:
        for name, value in list(vars(kind).items()):
            if type(value) in _PLAIN and not name.startswith("__"):
                yield ("class", id(kind), name), value, partial(_set_attribute, kind, name, value)


def _attributes(holder: Any) -> Iterator[tuple[Hashable, Any, Undo]]:
    """Those of an object of the script's own class, or of a package that it installed."""
    kind = type(holder)
    if kind.__module__.partition(".")[0] in _NOT_THE_SCRIPTS or isinstance(holder, _NO_HOLDERS):
        return
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        undo = partial(_set_attribute, holder, name, value)
        yield ("attribute", id(holder), name), value, undo


def _keep(value: Any, rebind: Undo) -> _Kept | None:
    if type(value) in _PLAIN:
        return _Kept(value, rebind)
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return None
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


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if one is two:
        return True
    plain = type(one) in (*_PLAIN, tuple) and type(two) is type(one)
    return plain and bool(one == two)


def _cells(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    for cell in function.__closure__ or ():
        try:
            yield cell, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions inside of it
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _set_global(space: dict[str, Any], name: str, value: Any) -> None:
    if space.get(name) is not value:
        space[name] = value


def _set_attribute(holder: Any, name: str, value: Any) -> None:
    if vars(holder).get(name) is not value:
        setattr(holder, name, value)
