"""What a loss function can reach by names: the functions, objects and modules that may keep state.

Followed are variables of closures, globals that code names, default values, what is bound or given
to a function beforehand, attributes of functions, of classes and of objects whose class is the
script's own, and the items of their containers. A walk of bounded length.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ...signals.kept_values import Undo

_MOST = 5_000  # values looked at: a millisecond for some hundred
_LARGEST = 1_000  # items of a container that are looked into
PLAIN = (bool, int, float, complex, str, bytes, type(None))
# a queue's counters, say, belong to the threads that share it
_NOT_THE_SCRIPTS = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "sdc_guard"} - {
    "__main__"
}
_NO_STATE = (ModuleType, BuiltinFunctionType, torch.dtype, torch.device)


@dataclass(frozen=True)
class Variable:
    """A name that holds a value.

    Attributes:
        key: tells it from all others.
        value: what it holds now.
        bind: makes it hold that again.
    """

    key: Hashable
    value: Any
    bind: Undo


@dataclass
class Reachable:
    """Variables and values, each once, in the order in which they are reached."""

    variables: list[Variable] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


def reachable(roots: Iterable[Any], leave_out: set[int]) -> Reachable:
    """What can be reached from some values.

    Args:
        roots: functions, modules, classes, objects.
        leave_out: ids of values that somebody else keeps.
    """
    found = Reachable()
    seen = set(leave_out)
    waiting = deque(roots)
    while waiting and len(seen) < _MOST:
        value = waiting.popleft()
        if type(value) in PLAIN or isinstance(value, _NO_STATE) or id(value) in seen:
            continue
        seen.add(id(value))
        found.values.append(value)
        for variable in _variables(value):
            found.variables.append(variable)
            waiting.append(variable.value)
        waiting.extend(_held(value))
    return found


def _variables(value: Any) -> Iterator[Variable]:
    if isinstance(value, FunctionType):
        if _is_the_scripts(value.__module__):
            yield from _of_function(value)
    elif isinstance(value, type):
        if _is_the_scripts(value.__module__):
            yield from _of_class(value)
    elif _is_the_scripts(type(value).__module__) and not isinstance(
        value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
    ):
        yield from _of_object(value)


def _held(value: Any) -> Iterator[Any]:
    """What else a value leads to."""
    if isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, torch.nn.Module):
        yield type(value)
        yield from _of_module(value)
    elif isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        if len(value) <= _LARGEST:
            yield from list(value.values()) if isinstance(value, dict) else list(value)
    elif not isinstance(value, (type, torch.Tensor)):
        yield type(value)


def _of_module(module: torch.nn.Module) -> Iterator[Any]:
    """Its attributes, and the hooks that run when it is called."""
    for name, attribute in vars(module).items():
        if name in ("_parameters", "_buffers"):
            continue
        if name.endswith("_hooks") or name == "_modules":
            yield from list(attribute.values()) if isinstance(attribute, dict) else ()
        elif not name.startswith("_forward_hooks_"):
            yield attribute


def _of_function(function: FunctionType) -> Iterator[Variable]:
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield Variable(("cell", id(cell)), value, partial(_set_cell, cell, value))
    space = function.__globals__
    for name in _names(function.__code__):
        if name in space:
            value = space[name]
            yield Variable(
                ("global", id(space), name), value, partial(_set_item, space, name, value)
            )
    yield from _of_attributes(function, vars(function))
    yield _new_names(function)


def _of_class(kind: type) -> Iterator[Variable]:
    own = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
    yield from _of_attributes(kind, own)
    call = vars(kind).get("__call__")
    if isinstance(call, FunctionType):
        yield Variable(("class", id(kind), "__call__"), call, _nothing)


def _of_object(value: Any) -> Iterator[Variable]:
    if hasattr(value, "__dict__"):
        yield from _of_attributes(value, vars(value))
        yield _new_names(value)
    slots = {
        name: getattr(value, name)
        for kind in type(value).__mro__
        for name in _slots(kind)
        if hasattr(value, name)
    }
    yield from _of_attributes(value, slots)


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [n for n in slots if not n.startswith("__")]


def _of_attributes(holder: Any, attributes: Any) -> Iterator[Variable]:
    for name, value in list(attributes.items()):
        if isinstance(value, (staticmethod, classmethod)):
            yield Variable(("attribute", id(holder), name), value.__func__, _nothing)
        elif isinstance(value, property):
            yield Variable(("attribute", id(holder), name), value.fget, _nothing)
        else:
            bind = partial(_set_attribute, holder, name, value)
            yield Variable(("attribute", id(holder), name), value, bind)


def _new_names(holder: Any) -> Variable:
    """Attributes that it has not yet: they are taken away again."""
    names = frozenset(vars(holder))
    return Variable(("names", id(holder)), names, partial(_forget_others, holder, names))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions inside of it
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.cache
def _is_the_scripts(module: str | None) -> bool:
    """Whether a module is neither of Python's library nor installed from a package."""
    if (module or "").partition(".")[0] in _NOT_THE_SCRIPTS:
        return False
    path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path


def _nothing() -> None:
    """A name that nobody binds anew."""


def _set_cell(cell: Any, value: Any) -> None:
    if cell.cell_contents is not value:
        cell.cell_contents = value


def _set_item(space: dict[str, Any], name: str, value: Any) -> None:
    if space.get(name) is not value:
        space[name] = value


def _forget_others(holder: Any, names: frozenset[str]) -> None:
    for name in set(vars(holder)) - names:
        delattr(holder, name)


def _set_attribute(holder: Any, name: str, value: Any) -> None:
    if getattr(holder, name, None) is not value:
        setattr(holder, name, value)
